//! Reads pages in bulk: sorted, neighbours merged, many requests in flight, every page verified.
//!
//! One reader serves one caller at a time; it runs without the class lock. The caller holds a read
//! ticket, so that no page it asked for is written again meanwhile.

use super::{PageAddress, PageSource};
use crate::error::{Error, Result};
use crate::io::{Completion, DeviceCurve, Queue};
use crate::metrics::ReadReport;
use std::time::Instant;

/// Answers that are waited for and looked at together: one entry of the kernel to wait and one to
/// ask again serve all of them (2.3 to 2.5 µs of processor time per row where answers one by one
/// took 2.5 to 2.65, same rate), and what they take of the depth is small.
const TOGETHER: usize = 8;

/// Of the pages of a dense request so many of so many at least are wanted.
const DENSE: (usize, usize) = (4, 5);

/// A queue and the rule for merging neighbours.
pub(crate) struct PageReader {
    queue: Box<dyn Queue>,
    /// Answers that nobody has looked at yet, the next one last.
    done: Vec<Completion>,
    /// Seconds a request of 1, 2, 3 … pages takes at full depth.
    cost: Vec<f64>,
    /// Whether hardly a page is to be read in vain.
    dense: bool,
    /// Requests planned: first wanted page index, one past the last.
    plan: Vec<(u32, u32)>,
}

impl PageReader {
    /// A reader whose requests are of one page, or with `merge` of as many as the longest buffer of
    /// the queue holds. Without a curve at most one page between two that are wanted is read in
    /// vain.
    pub(crate) fn new(
        queue: Box<dyn Queue>,
        page_bytes: usize,
        curve: Option<&DeviceCurve>,
        merge: bool,
    ) -> Self {
        let most = if merge { (queue.buffer_bytes() / page_bytes).max(1) } else { 1 };
        let cost = (1..=most)
            .map(|pages| match curve {
                Some(curve) => curve.cost(pages * page_bytes),
                None => 1.0 + 0.5 * pages as f64,
            })
            .collect();
        Self { queue, done: Vec::new(), cost, dense: false, plan: Vec::new() }
    }

    /// The same reader, whose requests are so long that time goes by their bytes: hardly a page of
    /// one is read in vain, whatever the curve says.
    pub(crate) fn dense(self) -> Self {
        Self { dense: true, ..self }
    }

    /// Cuts sorted distinct pages into requests: a page joins its left neighbour when one longer
    /// request is cheaper than two.
    fn make_plan(&mut self, pages: &[PageAddress]) {
        self.plan.clear();
        let mut begin = 0;
        for i in 1..=pages.len() {
            let joins = i < pages.len() && pages[i].file == pages[begin].file && {
                let span = (pages[i].page - pages[begin].page) as usize + 1;
                let before = (pages[i - 1].page - pages[begin].page) as usize + 1;
                span <= self.cost.len()
                    && self.cost[span - 1] < self.cost[before - 1] + self.cost[0]
                    && (!self.dense || DENSE.0 * span <= DENSE.1 * (i + 1 - begin))
            };
            if !joins {
                self.plan.push((begin as u32, i as u32));
                begin = i;
            }
        }
    }

    /// Reads `pages` (sorted, distinct) and calls `each(page, bytes)` for every verified one, in
    /// order of completion. Blocks until all are done; the first error ends it after what is in
    /// flight has finished. The next read waits for requests that a panic of `each` left in flight.
    pub(crate) fn read(
        &mut self,
        source: &dyn PageSource,
        pages: &[PageAddress],
        each: &mut dyn FnMut(PageAddress, &[u8]) -> Result<()>,
    ) -> Result<ReadReport> {
        self.drain()?;
        self.make_plan(pages);
        let plan = std::mem::take(&mut self.plan);
        let mut report = ReadReport {
            requests: plan.len() as u64,
            pages: pages.len() as u64,
            ..Default::default()
        };
        let mut next = 0;
        let mut failed: Option<Error> = None;
        while next < plan.len() || self.queue.in_flight() > 0 {
            if failed.is_none() {
                failed = self.ask(source, pages, &plan, &mut next, &mut report).err();
            }
            if self.queue.in_flight() == 0 {
                break;
            }
            let begin = Instant::now();
            let mut waited = self.queue.wait(TOGETHER, &mut self.done);
            report.waited += begin.elapsed();
            if failed.is_none() && waited.is_ok() {
                // The device gets its next requests, into spare buffers, before anyone looks at
                // what it has brought.
                failed = self.ask(source, pages, &plan, &mut next, &mut report).err();
                waited = self.queue.submit();
            }
            self.done.reverse();
            while let Some(completion) = self.done.last_mut() {
                let buffer = completion.buffer;
                if failed.is_none() {
                    let (begin, end) = plan[completion.token as usize];
                    let wanted = &pages[begin as usize..end as usize];
                    let bytes = self.queue.buffer(buffer);
                    failed = std::mem::replace(&mut completion.result, Ok(()))
                        .and_then(|()| deliver(bytes, source, wanted, each))
                        .err();
                }
                // Not before: `drain` finds the buffer here when `each` panics.
                self.done.pop();
                self.queue.release(buffer);
            }
            if let Err(error) = waited {
                failed.get_or_insert(error);
                break;
            }
        }
        let all = failed.is_some() || next == plan.len();
        assert!(all, "no buffer is free while nothing is in flight");
        self.plan = plan;
        failed.map_or(Ok(report), Err)
    }

    /// Waits for what a read that failed or panicked left in flight, and releases the buffers of
    /// its answers, which nobody wants any more.
    fn drain(&mut self) -> Result<()> {
        loop {
            self.done.drain(..).for_each(|completion| self.queue.release(completion.buffer));
            if self.queue.in_flight() == 0 {
                return Ok(());
            }
            self.queue.wait(self.queue.in_flight(), &mut self.done)?;
        }
    }

    /// Queues requests of `plan` from `next` on, while the depth and the queue's memory allow.
    fn ask(
        &mut self,
        source: &dyn PageSource,
        pages: &[PageAddress],
        plan: &[(u32, u32)],
        next: &mut usize,
        report: &mut ReadReport,
    ) -> Result<()> {
        let page_bytes = source.page_bytes();
        while *next < plan.len() && self.queue.in_flight() < self.queue.depth() {
            let (begin, end) = plan[*next];
            let first = pages[begin as usize];
            let span = (pages[end as usize - 1].page - first.page) as usize + 1;
            let bytes = span * page_bytes;
            let Some(buffer) = self.queue.acquire_for(bytes) else { break };
            let offset = u64::from(first.page) * page_bytes as u64;
            let file = source.file(first.file);
            if let Err(error) = self.queue.read(&file, offset, bytes, buffer, *next as u64) {
                self.queue.release(buffer);
                return Err(error);
            }
            report.bytes += bytes as u64;
            *next += 1;
        }
        Ok(())
    }
}

fn deliver(
    bytes: &[u8],
    source: &dyn PageSource,
    wanted: &[PageAddress],
    each: &mut dyn FnMut(PageAddress, &[u8]) -> Result<()>,
) -> Result<()> {
    for page in wanted {
        let at = (page.page - wanted[0].page) as usize * source.page_bytes();
        let page_bytes = &bytes[at..at + source.page_bytes()];
        source.verify(*page, page_bytes)?;
        each(*page, page_bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{Buffers, File, Medium, OpenMode, SimMedium};
    use crate::storage::PageLayout;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    const PAGES: u32 = 63;

    /// Two files of full pages, whose rows have their file and page as table and key.
    struct Pages {
        layout: PageLayout,
        files: [Arc<dyn File>; 2],
    }

    impl PageSource for Pages {
        fn file(&self, number: u16) -> Arc<dyn File> {
            self.files[usize::from(number)].clone()
        }

        fn page_bytes(&self) -> usize {
            self.layout.page_bytes
        }

        fn verify(&self, at: PageAddress, page: &[u8]) -> Result<()> {
            self.layout.verify(page, at.page, self.file(at.file).name()).map(drop)
        }
    }

    fn file_of_pages(medium: &SimMedium, layout: &PageLayout, table: u16) -> Arc<dyn File> {
        let file = medium.open(&format!("rows-{table}"), OpenMode::CreateNew).unwrap();
        file.allocate(0, u64::from(PAGES + 1) * 512).unwrap();
        for number in 1..=PAGES {
            let mut words = vec![0.0f32; layout.page_bytes / 4];
            let page: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
            for slot in 0..layout.rows_per_page {
                layout.put(page, slot, table, u64::from(number), &[0.5; 16]);
            }
            layout.seal(page, number, layout.rows_per_page, u64::from(number));
            file.write_at(page, u64::from(number) * 512).unwrap();
        }
        file
    }

    fn pages_and_reader(depth: usize, merge: usize) -> (Pages, PageReader) {
        let medium = SimMedium::new(1);
        let layout = PageLayout::new(512, 64, 0, 7).unwrap();
        let files = [0, 1].map(|number| file_of_pages(&medium, &layout, number));
        let buffers = Buffers::sharing(depth * 512, 512, merge * 512);
        let queue = medium.queue(depth, buffers).unwrap();
        let reader = PageReader::new(queue, layout.page_bytes, None, merge > 1);
        (Pages { layout, files }, reader)
    }

    // A panic lost the answers that were not looked at yet, and their buffers with them: the next
    // read had too few, with none it came back without having read anything.
    #[test]
    fn a_reader_that_a_panic_interrupted_reads_every_page_of_the_next_batch() {
        for (depth, seen_before, merge) in [
            (1, 0, false),
            (4, 0, false),
            (4, 9, false),
            (16, 3, false),
            (16, 30, false),
            (4, 1, true),
            (6, 9, true),
            (16, 30, true),
        ] {
            let (source, mut reader) = pages_and_reader(depth, if merge { 4 } else { 1 });
            // Runs of 1 to 6 pages, so that buffers of several lengths take turns.
            let of_file = |file: u16| {
                let pages = (1..=PAGES).filter(|p| !p.is_multiple_of(7) && p % 9 != 4);
                pages.map(move |page| PageAddress { file, page })
            };
            let pages: Vec<_> = of_file(0).chain(of_file(1)).collect();
            // More panics than there are buffers.
            for _ in 0..depth + 1 {
                let mut seen = 0;
                let panicked = catch_unwind(AssertUnwindSafe(|| {
                    reader.read(&source, &pages, &mut |_, _| {
                        assert!(seen < seen_before, "of the caller");
                        seen += 1;
                        Ok(())
                    })
                }));
                assert!(panicked.is_err());
            }
            let mut seen = Vec::new();
            let report = reader.read(&source, &pages, &mut |at, page| {
                assert_eq!(source.layout.entry(page, 0), (at.file, u64::from(at.page)));
                seen.push(at);
                Ok(())
            });
            seen.sort_unstable();
            assert_eq!(seen, pages, "depth {depth}, panic after {seen_before}");
            let report = report.unwrap();
            assert_eq!(report.pages, pages.len() as u64);
            assert_eq!(merge, report.requests < report.pages);
        }
    }

    #[test]
    fn a_dense_request_has_one_page_of_five_in_vain_at_most() {
        let read = |merge, is_dense, wanted: &[u32]| {
            let (source, reader) = pages_and_reader(16, merge);
            let mut reader = if is_dense { reader.dense() } else { reader };
            let pages = wanted.iter().map(|page| PageAddress { file: 0, page: *page });
            let pages: Vec<PageAddress> = pages.collect();
            let mut seen = Vec::new();
            let report = reader.read(&source, &pages, &mut |at, page| {
                assert_eq!(source.layout.entry(page, 0), (0, u64::from(at.page)));
                seen.push(at.page);
                Ok(())
            });
            seen.sort_unstable();
            assert_eq!(seen, wanted);
            let report = report.unwrap();
            (report.requests, report.bytes / 512)
        };
        for (wanted, cheaper, dense) in [
            (&[1, 2, 3, 4, 5, 6][..], (1, 6), (1, 6)),
            (&[1, 3, 5, 7], (1, 7), (4, 4)),
            (&[1, 2, 4, 6, 7, 8], (1, 8), (3, 6)),
            (&[1, 2, 3, 4, 6, 7, 9], (2, 8), (2, 8)),
        ] {
            assert_eq!(read(1, true, wanted), (wanted.len() as u64, wanted.len() as u64));
            assert_eq!(read(8, false, wanted), cheaper, "{wanted:?}");
            assert_eq!(read(8, true, wanted), dense, "{wanted:?}");
        }
    }
}
