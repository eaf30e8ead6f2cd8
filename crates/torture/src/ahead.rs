//! Announced batches, and permits for batches in flight.

use crate::check;
use crate::life::{Life, Step};
use crate::plan::Kind;
use crate::report::Event;
use embedrock_core::{LookaheadBatch, ScheduledBatch, TableId};
use std::rc::Rc;
use std::time::Duration;

/// Batches that are announced ahead at most.
const AHEAD: usize = 24;
/// Batches of a stretch, and how many stretches ahead a row is used next at most.
const BATCHES_PER_STRETCH: u64 = 3;
const STRETCHES_AHEAD: u64 = 6;

impl Life<'_> {
    /// Announces, reads ahead, or uses a batch.
    pub(crate) fn use_window(&mut self) -> Step {
        if self.plan.kind == Kind::Crowded && self.random.chance(1, 2) {
            return self.crowd();
        }
        if self.plan.kind == Kind::Scheduled && self.random.chance(1, 2) {
            return self.train_stretch();
        }
        match self.random.below(8) {
            0..=2 if self.announced.len() < AHEAD => self.announce(),
            0..=4 => self.turn_window(),
            5..=6 => self.use_announced(),
            _ if self.random.chance(1, 6) => self.clear_window(),
            _ => self.turn_window(),
        }
    }

    /// Batches far ahead, all that can be read of them, and the first one's use.
    fn crowd(&mut self) -> Step {
        while self.announced.len() < AHEAD {
            let before = self.announced.len();
            self.announce()?;
            if self.announced.len() == before {
                return Ok(());
            }
        }
        self.turn_window()?;
        self.use_announced()
    }

    /// Trains the batches of a stretch, each announced long before it is used.
    fn train_stretch(&mut self) -> Step {
        let ahead = 2 + self.random.below(AHEAD as u64 - 2) as usize;
        for _ in 0..BATCHES_PER_STRETCH {
            while self.announced.len() < ahead {
                let before = self.announced.len();
                self.announce()?;
                if self.announced.len() == before {
                    return Ok(());
                }
            }
            self.turn_window()?;
            self.use_announced()?;
            if self.is_poisoned() || self.medium.power_is_off() {
                return Ok(());
            }
        }
        if self.random.chance(1, 4) { self.commit() } else { Ok(()) }
    }

    /// The rows that the schedule has for the batch to be announced, and a few that it has not.
    fn keys_of_schedule(&mut self) -> Vec<u64> {
        let plan = Rc::clone(&self.model.tables[0].plan);
        let (stretches, at) = (self.plan.stretches, self.scheduled % BATCHES_PER_STRETCH);
        let first = self.scheduled / BATCHES_PER_STRETCH % stretches + at * stretches;
        let mut keys: Vec<u64> = (first..plan.keys)
            .step_by((stretches * BATCHES_PER_STRETCH) as usize)
            .map(|i| plan.key(i))
            .collect();
        for key in &mut keys {
            if self.random.chance(1, 16) {
                *key = plan.key(self.random.below(plan.keys));
            }
        }
        keys
    }

    fn announce(&mut self) -> Step {
        let mut batch: Vec<(usize, Vec<u64>)> = Vec::new();
        if self.plan.kind == Kind::Crowded {
            // A batch as large as those that are read ahead for a cache of this size.
            let plan = Rc::clone(&self.model.tables[0].plan);
            let most = self.plan.batch;
            let keys = (0..most).map(|_| plan.key(self.random.below(plan.keys))).collect();
            batch.push((0, keys));
        } else if self.plan.kind == Kind::Scheduled {
            batch.push((0, self.keys_of_schedule()));
        } else {
            for _ in 0..1 + self.random.below(2) {
                let (table, _) = self.draw_table();
                let keys = self.draw_keys(table);
                batch.push((table, keys));
            }
        }
        self.note(|| "announce".to_owned());
        self.counts.verb("announce");
        let by_gets = if self.plan.kind == Kind::Scheduled { 40 } else { 4 };
        if batch.len() == 1 && self.random.chance(1, by_gets) {
            let (table, keys) = &batch[0];
            match self.store().lookahead(self.ids[*table], keys) {
                Ok(()) => self.announced.push_back((None, batch)),
                Err(error) => self.refused("lookahead", &error, None)?,
            }
            return Ok(());
        }
        let next: Vec<Vec<u16>> = batch.iter().map(|(_, keys)| self.next_uses(keys)).collect();
        let mut parts = Vec::with_capacity(batch.len());
        for ((table, keys), next) in batch.iter().zip(&next) {
            parts.push(LookaheadBatch { table: self.ids[*table], keys, next });
        }
        let place = self.plan.schedules.then(|| self.place_in_schedule());
        let announced = match place {
            Some(place) => self.store().announce_scheduled(&parts, place),
            None => self.store().announce(&parts),
        };
        self.scheduled += u64::from(place.is_some());
        match announced {
            Ok(number) => self.announced.push_back((number, batch)),
            Err(error) => self.refused("announce", &error, None)?,
        }
        Ok(())
    }

    fn place_in_schedule(&self) -> ScheduledBatch {
        let stretch = self.scheduled / BATCHES_PER_STRETCH;
        let batches = BATCHES_PER_STRETCH as u32;
        ScheduledBatch { stretch, batches, furthest: self.stretches_ahead() as u32 }
    }

    fn stretches_ahead(&self) -> u64 {
        match self.plan.kind {
            Kind::Scheduled => self.plan.stretches,
            _ => STRETCHES_AHEAD,
        }
    }

    /// The schedule's next uses of the keys of a batch: for each key the same stretch, whatever
    /// batch it is in, so that it is right now and then. In a scheduled life it is right about
    /// most.
    fn next_uses(&self, keys: &[u64]) -> Vec<u16> {
        if !self.plan.schedules {
            return Vec::new();
        }
        let now = self.scheduled / BATCHES_PER_STRETCH;
        if self.plan.kind == Kind::Scheduled {
            let next = |key: &u64| if key % 16 == now % 16 { 0 } else { self.plan.stretches + 1 };
            return keys.iter().map(|key| next(key) as u16).collect();
        }
        let next = |key: &u64| (key.wrapping_mul(7).wrapping_add(now)) % (STRETCHES_AHEAD + 2);
        keys.iter().map(|key| next(key) as u16).collect()
    }

    fn turn_window(&mut self) -> Step {
        self.note(|| "the window works".to_owned());
        for _ in 0..1 + self.random.below(8) {
            match self.store().window_turn() {
                Ok(true) => self.counts.event(Event::ReadAhead),
                Ok(false) => break,
                Err(error) => return self.refused("the window", &error, None),
            }
        }
        Ok(())
    }

    /// The batch that was announced first: read, and mostly updated as any other.
    fn use_announced(&mut self) -> Step {
        let Some((number, batch)) = self.announced.pop_front() else { return Ok(()) };
        self.note(|| format!("use batch {number:?}"));
        if let Some(number) = number {
            self.store().begin(number, Duration::ZERO).map_err(|e| format!("begin: {e:?}"))?;
        }
        for (table, keys) in &batch {
            let at = (*table, self.ids[*table]);
            check::rows(self.store(), &self.model, at, keys, false, &self.care())?;
        }
        if self.random.chance(3, 4) {
            self.train_on(&batch)?;
        }
        if self.is_poisoned() || self.medium.power_is_off() {
            return Ok(());
        }
        if let Some(number) = number {
            self.store().finish(number).map_err(|e| format!("finish: {e:?}"))?;
        }
        Ok(())
    }

    fn clear_window(&mut self) -> Step {
        self.note(|| "clear what is announced".to_owned());
        self.announced.clear();
        self.store().clear_announced().map_err(|e| format!("clear_announced: {e:?}").into())
    }

    /// Batches in flight under a bound of staleness: which rows may be read is known.
    pub(crate) fn use_permits(&mut self) -> Step {
        let Some(permits) = self.permits.take() else { return Ok(()) };
        self.note(|| "permits".to_owned());
        self.counts.verb("permits");
        let mut flying: Vec<(u64, (usize, TableId), Vec<u64>)> = Vec::new();
        for _ in 0..3 {
            let at = self.draw_table();
            let keys = self.draw_keys(at.0);
            let entered = permits.enter(&[(at.1, &keys)]).map_err(|e| format!("enter: {e:?}"))?;
            let earlier = |key: u64| {
                let touches =
                    |f: &&(u64, (usize, TableId), Vec<u64>)| f.1.0 == at.0 && f.2.contains(&key);
                flying.iter().filter(touches).count() as u64
            };
            let mut expected: Vec<u32> = Vec::new();
            for (i, key) in keys.iter().enumerate() {
                if !keys[..i].contains(key) && earlier(*key) > permits.bound() {
                    expected.push(i as u32);
                }
            }
            let mut found = entered.deferred[0].clone();
            found.sort_unstable();
            if found != expected {
                return Err(format!("rows {found:?} are deferred, expected {expected:?}").into());
            }
            flying.push((entered.permit, at, keys));
        }
        while !flying.is_empty() {
            let i = self.random.below(flying.len() as u64) as usize;
            let (permit, at, keys) = flying.remove(i);
            check::rows(self.store(), &self.model, at, &keys, false, &self.care())?;
            permits.release(permit).map_err(|e| format!("release: {e:?}"))?;
        }
        self.permits = Some(permits);
        Ok(())
    }
}
