//! Commits: waited for, completed beside verbs, and gone back to.

use crate::faults::Fault;
use crate::life::{Life, Point, Step, point_name};
use crate::pins::At;
use crate::plan::Kind;
use crate::report::Event;
use embedrock_core::{CommitInfo, ErrorKind, Result as EngineResult};
use std::rc::Rc;

impl Life<'_> {
    /// The commit of everything so far, with a meta that no other has.
    fn point(&mut self) -> Rc<Point> {
        let most = self.plan.meta_bytes;
        let filler = "m".repeat(self.random.below(most) as usize);
        let meta = format!("#{} {filler}", self.operation);
        let mut state = Vec::new();
        if self.plan.state_bytes > 0 && self.random.chance(2, 3) {
            for name in ["dense", "optimizer"] {
                let n = self.random.below(self.plan.state_bytes);
                let bytes = (0..n).map(|i| (i * 31 + self.operation) as u8).collect();
                state.push((name.to_owned(), bytes));
            }
        }
        let step = self.next_step() + self.random.below(2);
        Rc::new(Point { step, meta, state, model: self.model.clone() })
    }

    /// A commit that is waited for.
    pub(crate) fn commit(&mut self) -> Step {
        self.complete_by_hand()?;
        if self.is_poisoned() || self.medium.power_is_off() {
            return Ok(());
        }
        let point = self.point();
        self.note(|| format!("commit {}", point_name(&point)));
        self.counts.verb("commit");
        let begun = self.medium.counters().operations;
        let often = self.plan.kind == Kind::Commits && self.plan.allows(Fault::Power);
        self.cut_in_commit |= often && self.random.chance(1, 8);
        if self.cut_in_commit && !self.is_doomed() && self.random.chance(1, 2) {
            self.medium.power_cut_in_sync("journal-", self.random.below(2));
        } else if self.cut_in_commit && !self.is_doomed() {
            // Mostly near its end, where it becomes durable.
            let all = self.commit_operations;
            let from_end = if self.random.chance(2, 3) { all.min(8) } else { all };
            let cut = begun + all - self.random.below(from_end.max(1)).min(all);
            self.medium.power_cut_after(cut);
        }
        let result = self.store().commit(point.step, &point.meta, &borrowed(&point));
        self.commit_operations = self.medium.counters().operations - begun;
        self.committed(point, result.map(Some))
    }

    /// A commit that verbs run beside.
    pub(crate) fn begin_by_hand(&mut self) -> Step {
        self.complete_by_hand()?;
        if self.is_poisoned() || self.medium.power_is_off() {
            return Ok(());
        }
        let point = self.point();
        self.note(|| format!("begin commit {}", point_name(&point)));
        self.counts.verb("commit_in_background");
        match self.store().commit_by_hand(point.step, &point.meta, &borrowed(&point)) {
            Ok(()) => {
                self.under_way = Some(point);
                Ok(())
            }
            Err(error) => self.committed(point, Err(error)),
        }
    }

    /// A portion of the commit under way.
    pub(crate) fn commit_step(&mut self) -> Step {
        let Some(point) = self.under_way.clone() else { return Ok(()) };
        self.note(|| "portion of the commit".to_owned());
        match self.store().commit_step() {
            Ok(None) => self.watch_budget(),
            outcome => {
                self.under_way = None;
                self.committed(point, outcome)
            }
        }
    }

    /// All that is left of the commit under way.
    pub(crate) fn complete_by_hand(&mut self) -> Step {
        while self.under_way.is_some() && !self.medium.power_is_off() {
            self.commit_step()?;
        }
        if self.under_way.is_some() {
            self.settle_under_way();
        }
        Ok(())
    }

    fn committed(&mut self, point: Rc<Point>, result: EngineResult<Option<CommitInfo>>) -> Step {
        let chain = self.chain_with(&point);
        match result {
            Ok(info) => {
                let info = info.expect("an outcome");
                if (info.step, &info.meta) != (point.step, &point.meta) {
                    return Err(format!("{} became {info:?}", point_name(&point)).into());
                }
                self.counts.event(Event::Commit);
                self.chain = chain;
                self.others.clear();
                self.head_is_current = true;
                self.check_commits()
            }
            Err(error) => {
                // It may be found nevertheless, unless it was refused.
                self.others.push(chain);
                let refused = matches!(error.kind(), ErrorKind::Full | ErrorKind::Locked);
                self.refused(&format!("commit {}", point_name(&point)), &error, None)?;
                if refused && !self.is_poisoned() && !self.medium.power_is_off() {
                    self.others.pop();
                }
                Ok(())
            }
        }
    }

    fn check_commits(&self) -> Step {
        let found: Vec<u64> = self.store().commits().iter().map(|info| info.step).collect();
        let expected: Vec<u64> = self.chain.iter().map(|point| point.step).collect();
        if found != expected {
            return Err(format!("the store keeps steps {found:?}, expected {expected:?}").into());
        }
        Ok(())
    }

    /// Opens the store at an earlier commit and goes on from there.
    pub(crate) fn go_back(&mut self) -> Step {
        if self.chain.len() < 2 || self.is_doomed() {
            return self.reopen();
        }
        let at = self.random.below(self.chain.len() as u64 - 1) as usize;
        let step = self.chain[at].step;
        self.complete_by_hand()?;
        if self.is_poisoned() || self.medium.power_is_off() {
            return Ok(());
        }
        let Some(at) = self.chain.iter().position(|point| point.step == step) else {
            return Ok(());
        };
        if at + 1 == self.chain.len() {
            return Ok(());
        }
        self.readers.clear();
        let sequence = self.store().commits()[at].sequence;
        if !self.unpin_after(sequence)? {
            return Ok(());
        }
        self.note(|| format!("go back to step {step}"));
        self.counts.event(Event::WentBack);
        self.leave();
        self.open_again(At::Step(step))
    }
}

fn borrowed(point: &Point) -> Vec<(&str, &[u8])> {
    point.state.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect()
}
