//! Counts of copies in segments, epoch by epoch.

use super::*;
use crate::hash::mix;

fn filled(segments: &mut Segments) -> SegmentId {
    segments.grow();
    let id = segments.open(0, 0).unwrap();
    for page in 0..segments.pages_of(id) {
        for row in 0..4 {
            segments.written((segments.first_page(id) + page) * 4 + row);
        }
    }
    segments.seal(id);
    id
}

fn slots(segments: &Segments, id: SegmentId) -> std::ops::Range<u32> {
    let first = segments.first_page(id) * 4;
    first..first + segments.pages_of(id) * 4
}

#[test]
fn copies_outdated_in_their_own_epoch_free_the_segment_at_once() {
    let mut segments = Segments::new(8, 4, 1);
    let id = filled(&mut segments);
    for slot in slots(&segments, id) {
        segments.outdated(slot);
    }
    assert_eq!(segments.open(0, 0), Some(id));
}

#[test]
fn copies_of_a_kept_commit_stay_until_it_is_dropped() {
    let mut segments = Segments::new(8, 4, 1);
    let id = filled(&mut segments);
    segments.next_epoch(&[]); // commit 1 is made, 2 is prepared
    for slot in slots(&segments, id) {
        segments.outdated(slot);
    }
    assert_eq!(segments.open(0, 0), None);
    segments.next_epoch(&[]); // commit 2 is made; keeping 1 and 2
    segments.drop_commits_before(1);
    assert_eq!(segments.open(0, 0), None, "commit 1 still has these copies");
    segments.next_epoch(&[]);
    segments.drop_commits_before(2);
    assert_eq!(segments.open(0, 0), Some(id));
}

#[test]
fn a_leftover_is_worth_cleaning_whatever_commits_have_of_it() {
    let mut segments = Segments::new(8, 4, 1);
    let id = filled(&mut segments);
    let slots: Vec<u32> = slots(&segments, id).collect();
    let most = slots.len() / SLOTS_PER_LEFT as usize;
    segments.next_epoch(&[]);
    segments.spare_held(true);
    for left in (0..slots.len()).rev() {
        segments.outdated(slots[left]);
        let worth = if (1..=most).contains(&left) { slots.len() - left } else { 0 };
        assert_eq!(segments.reclaimable_total(), worth as u64, "{left} are newest");
        assert_eq!(segments.victim(Pressure::None), (worth > 0).then_some(id));
        if left == 1 {
            segments.cleaned(id);
            assert_eq!((segments.reclaimable_total(), segments.victim(Pressure::None)), (0, None));
            segments.next_epoch(&[]);
            segments.next_epoch(&[]);
            assert_eq!(segments.victim(Pressure::None), Some(id), "cleaned two epochs ago");
        }
    }
    assert_eq!(segments.reclaimable_total(), 0);
}

#[test]
fn a_segment_open_across_a_commit_knows_which_copies_the_commit_has() {
    let mut segments = Segments::new(8, 4, 1);
    segments.grow();
    let id = segments.open(0, 0).unwrap();
    segments.written(4);
    segments.next_epoch(&[Some((id, 2))]);
    segments.written(8);
    segments.seal(id);
    segments.outdated(8);
    assert_eq!(segments.retained_total(), 0);
    segments.outdated(4);
    assert_eq!(segments.retained_total(), 1);
    segments.drop_commits_before(2);
    assert_eq!(segments.open(0, 0), Some(id));
}

#[test]
fn a_running_read_keeps_a_freed_segment_from_being_written() {
    let mut segments = Segments::new(8, 4, 1);
    let id = filled(&mut segments);
    let ticket = segments.begin_read();
    for slot in slots(&segments, id) {
        segments.outdated(slot);
    }
    assert_eq!(segments.open(0, 0), None);
    let later = segments.begin_read();
    segments.end_read(ticket);
    assert_eq!(segments.open(0, 0), Some(id), "reads that began later cannot have seen it");
    segments.end_read(later);
}

#[test]
fn the_victim_has_the_most_dead_slots_and_is_cleaned_once_an_epoch() {
    let mut segments = Segments::new(8, 4, 1);
    let first = filled(&mut segments);
    let second = filled(&mut segments);
    for slot in slots(&segments, first).take(10) {
        segments.outdated(slot);
    }
    for slot in slots(&segments, second).take(20) {
        segments.outdated(slot);
    }
    for pressure in [Pressure::Tight, Pressure::Beside, Pressure::None] {
        assert_eq!(segments.victim(pressure), Some(second));
        segments.cleaned(second);
        assert_eq!(segments.victim(pressure), Some(first));
        segments.cleaned(first);
        assert_eq!(segments.victim(pressure), None);
        segments.next_epoch(&[]);
        assert_eq!(segments.victim(pressure), Some(second));
    }
}

// Slots that cleaning could not give back counted as if it could, so the log seemed too large
// whatever was cleaned, and every segment was, down to those with hardly a dead slot.
#[test]
fn only_what_cleaning_can_still_release_counts_as_reclaimable() {
    let mut segments = Segments::new(8, 4, 1);
    let id = filled(&mut segments);
    let all: Vec<u32> = slots(&segments, id).collect();
    all[..4].iter().for_each(|slot| segments.outdated(*slot));
    assert_eq!(segments.reclaimable_total(), 0, "4 of 28 are too few");
    all[4..16].iter().for_each(|slot| segments.outdated(*slot));
    assert_eq!(segments.reclaimable_total(), 16);
    segments.next_epoch(&[]);
    segments.spare_held(true);
    assert_eq!((segments.reclaimable_total(), segments.victim(Pressure::None)), (0, None));
    segments.spare_held(false);
    assert_eq!((segments.reclaimable_total(), segments.victim(Pressure::None)), (16, Some(id)));
    segments.outdated(all[16]);
    assert_eq!(segments.reclaimable_total(), 14, "a retained copy counts for two");
    segments.cleaned(id);
    assert_eq!((segments.reclaimable_total(), segments.victim(Pressure::None)), (0, None));
    segments.next_epoch(&[]);
    assert_eq!(segments.reclaimable_total(), 14);
    // Its rows were moved: the retained copy alone keeps it.
    all[17..].iter().for_each(|slot| segments.outdated(*slot));
    assert_eq!((segments.reclaimable_total(), segments.free_pages()), (0, 0));
}

#[test]
fn copies_that_a_commit_retains_are_not_dead() {
    let mut segments = Segments::new(8, 4, 1);
    let id = filled(&mut segments);
    segments.next_epoch(&[]);
    for slot in slots(&segments, id).take(20) {
        segments.outdated(slot);
    }
    assert_eq!(segments.victim(Pressure::Tight), None, "cleaning it would release nothing");
    segments.drop_commits_before(2);
    assert_eq!(segments.victim(Pressure::Tight), Some(id));
}

#[test]
fn near_the_disk_bound_the_older_of_two_equal_segments_is_cleaned_first() {
    let mut segments = Segments::new(8, 4, 1);
    let (old, young) = (filled(&mut segments), filled(&mut segments));
    for id in [old, young] {
        slots(&segments, id).take(10).for_each(|slot| segments.outdated(slot));
    }
    assert_eq!(segments.victim(Pressure::Tight), Some(old));
    // The more is dead, the less age counts.
    slots(&segments, young).skip(10).take(15).for_each(|slot| segments.outdated(slot));
    assert_eq!(segments.victim(Pressure::Tight), Some(young));
}

#[test]
fn what_commits_alone_will_free_is_pending() {
    let mut segments = Segments::new(8, 4, 1);
    let id = filled(&mut segments);
    segments.next_epoch(&[]);
    assert_eq!(segments.pending_slots(), 0);
    let (last, others) = (slots(&segments, id).next().unwrap(), slots(&segments, id).skip(1));
    others.for_each(|slot| segments.outdated(slot));
    assert_eq!(segments.pending_slots(), 0, "one row would still have to be moved");
    segments.outdated(last);
    assert_eq!(segments.pending_slots(), 28);
    segments.drop_commits_before(2);
    assert_eq!((segments.pending_slots(), segments.free_pages()), (0, 7));
}

#[test]
fn what_dirty_rows_keep_is_counted_until_a_commit_holds_it() {
    let mut segments = Segments::new(8, 4, 1);
    let id = filled(&mut segments);
    slots(&segments, id).take(20).for_each(|slot| segments.outdated(slot));
    assert_eq!((segments.kept_by_dirty_total(), segments.kept_by_dirty_most()), (0, None));
    segments.cleaned(id);
    assert_eq!((segments.kept_by_dirty_total(), segments.kept_by_dirty_most()), (20, Some(id)));
    segments.next_epoch(&[]);
    assert_eq!((segments.kept_by_dirty_total(), segments.kept_by_dirty_most()), (0, None));
}

// Totals are kept as segments change; what a segment is worth depends on the epoch, too, and on
// whether those that commits hold are spared.
#[cfg_attr(miri, ignore = "long, and no unsafe code")]
#[test]
fn totals_are_sums_over_segments_after_any_operations() {
    const ROWS: u32 = 4;
    let (mut reclaimable, mut kept_by_dirty, mut leftovers, mut pending) = (0, 0, 0, 0);
    let (mut given, mut cuts) = (0, 0);
    for seed in 0..20 {
        let mut segments = Segments::new(8, ROWS, 1);
        let mut newest: Vec<u32> = Vec::new();
        let mut readers = Vec::new();
        // The segment that each of two streams is filling, and its next slot.
        let mut open: [Option<(SegmentId, u32)>; 2] = [None; 2];
        for step in 0..4_000u64 {
            let random = |n: u64| mix(step, seed << 8 | n);
            let stream = (random(1) % 2) as usize;
            match random(2) % 100 {
                0..45 => {
                    let (id, slot) = open[stream].unwrap_or_else(|| {
                        let id = segments.open(stream as u8, 0).unwrap_or_else(|| {
                            segments.grow();
                            segments.open(stream as u8, 0).unwrap()
                        });
                        (id, segments.first_page(id) * ROWS)
                    });
                    segments.written(slot);
                    newest.push(slot);
                    let end = (segments.first_page(id) + segments.pages_of(id)) * ROWS;
                    open[stream] = (slot + 1 < end).then_some((id, slot + 1));
                    if open[stream].is_none() {
                        segments.seal(id);
                    }
                }
                45..85 if newest.len() > 200 => {
                    // Old copies and new ones, so that segments end in many ways.
                    let among = if random(3) % 2 == 0 { newest.len() } else { 40 };
                    let at = newest.len() - 1 - (random(4) % among as u64) as usize;
                    segments.outdated(newest.remove(at));
                }
                90..96 => {
                    let sealed: Vec<SegmentId> = segments.sealed().collect();
                    if !sealed.is_empty() {
                        segments.cleaned(sealed[(random(5) % sealed.len() as u64) as usize]);
                    }
                }
                96 | 97 => segments.spare_held(random(6) % 2 == 0),
                98 => {
                    let next = |slot: u32| slot.div_ceil(ROWS);
                    segments.next_epoch(&open.map(|o| o.map(|(id, slot)| (id, next(slot)))));
                    // The commit seals the page that is not full.
                    open = open.map(|o| o.map(|(id, slot)| (id, next(slot) * ROWS)));
                    for stream in &mut open {
                        let full = |(id, slot): &(SegmentId, u32)| {
                            *slot == (segments.first_page(*id) + segments.pages_of(*id)) * ROWS
                        };
                        if let Some((id, _)) = stream.take_if(|o| full(o)) {
                            segments.seal(id);
                        }
                    }
                    segments.drop_commits_before(segments.epoch().saturating_sub(2));
                }
                _ => match random(7) % 8 {
                    0 => readers.push(segments.begin_read()),
                    1..3 => {
                        readers.drain(..1.min(readers.len())).for_each(|t| segments.end_read(t))
                    }
                    3 => {
                        if let Some((id, _)) = segments.next_not_ready() {
                            segments.made_ready(id);
                        }
                    }
                    4 => _ = segments.grow(),
                    _ => {
                        let Some(&last) = segments.may_go().first() else { continue };
                        let down = |id: &SegmentId| segments.may_go().contains(id);
                        let run = (0..=last).rev().take_while(down).count() as u32;
                        let ids = last + 1 - (1 + random(8) as u32 % run)..=last;
                        if segments.is_end(last) {
                            segments.cut(segments.left_before(*ids.start()));
                            cuts += 1;
                        } else if random(9) % 4 > 0 {
                            segments.gave_back(ids);
                        } else {
                            segments.doubt(ids);
                        }
                        given += 1;
                    }
                },
            }
            let sum = |of: &dyn Fn(SegmentId) -> u32| {
                (0..segments.count()).map(|id| u64::from(of(id))).sum::<u64>()
            };
            let at = format!("seed {seed}, step {step}");
            assert_eq!(segments.newest_total(), newest.len() as u64, "{at}");
            assert_eq!(segments.newest_total(), sum(&|id| segments.newest_of(id)), "{at}");
            let retained = |id| segments.segments[id as usize].retained;
            assert_eq!(segments.retained_total(), sum(&retained), "{at}");
            let worth = sum(&|id| segments.reclaimable(id));
            assert_eq!(segments.reclaimable_total(), worth, "{at}");
            let kept = sum(&|id| segments.kept_by_dirty(id));
            assert_eq!(segments.kept_by_dirty_total(), kept, "{at}");
            let pages = |id| match segments.segments[id as usize].state {
                State::Free => segments.pages_of(id),
                _ => 0,
            };
            assert_eq!(segments.free_pages(), sum(&pages), "{at}");
            let used = sum(&|id| segments.pages_of(id)) - sum(&pages);
            assert_eq!(segments.used_slots(), used * u64::from(ROWS), "{at}");
            assert_eq!(segments.pending_slots(), sum(&|id| segments.pending(id)), "{at}");
            let available = segments.available().map(|id| u64::from(segments.pages_of(id)));
            assert_eq!(segments.available_pages(), available.sum::<u64>(), "{at}");
            let lists = segments.free.len() + segments.absent.len() + segments.unsure.len();
            assert_eq!(sum(&|id| u32::from(pages(id) > 0)), lists as u64, "{at}");
            pending += u64::from(segments.pending_slots() > 0);
            reclaimable += u64::from(worth > 0);
            kept_by_dirty += u64::from(kept > 0);
            let left = |id| u32::from(segments.is_leftover(id) && segments.newest_of(id) > 0);
            leftovers += u64::from(sum(&left) > 0);
        }
    }
    for (n, what) in [
        (reclaimable, "is reclaimable"),
        (kept_by_dirty, "is kept by dirty rows"),
        (leftovers, "is left over"),
        (pending, "waits for commits"),
    ] {
        assert!(n > 1_000, "something {what} after {n} steps of 80,000");
    }
    assert!(given > 50 && cuts > 10, "{given} times room was given back, {cuts} at the end");
}

#[test]
fn slots_counted_together_are_those_counted_one_by_one() {
    for (pages, rows, segments) in [(7, 3, 11), (8, 4, 5), (1024, 96, 3), (64, 28, 9)] {
        let mut one = Segments::new(pages, rows, 1);
        let mut all = Segments::new(pages, rows, 1);
        (0..segments).for_each(|_| {
            one.grow();
            all.grow();
        });
        let end = pages * rows * segments;
        let mut words: Vec<u32> = (rows..end).filter(|slot| slot % 5 != 2).collect();
        words.extend([0, 0, rows, end - 1]);
        words.iter().filter(|slot| **slot != 0).for_each(|slot| one.recovered_newest(*slot));
        assert!(all.recovered_all(words.len(), |id| words[id], u64::from(rows)..u64::from(end)));
        let newest = |s: &Segments| (0..segments).map(|id| s.newest_of(id)).collect::<Vec<_>>();
        assert_eq!(newest(&one), newest(&all));
        assert_eq!(one.newest_total(), all.newest_total());
        for outside in [1, rows - 1, end, u32::MAX] {
            assert!(!all.recovered_all(1, |_| outside, u64::from(rows)..u64::from(end)));
        }
        assert_eq!(newest(&one), newest(&all));
    }
}
