//! The last trials of a life: on machines of their own, the device lies once.

use crate::faults::Fault;
use crate::life::{Life, Step, Stop};
use crate::pins::At;
use crate::plan::Kind;

/// Machines at the end of a life whose device lies.
const EXAMS: usize = 10;
/// The same for stores whose old pages differ from the present ones in the values alone.
const EXAMS_OF_CHURN: usize = 12;

impl Life<'_> {
    /// The last trials: on machines of their own, which begin with the content of the disk, the
    /// device lies once. Every read, before and after an opening, gives right rows or an error.
    pub(crate) fn examine(&mut self) -> Step {
        let mut lies: Vec<Fault> = self.plan.faults.iter().filter(|fault| fault.lies()).collect();
        let churns = self.plan.kind == Kind::Churn;
        if churns && self.plan.allows(Fault::Lost) {
            lies.extend([Fault::Lost; 4]);
        }
        if !churns {
            // The others are noticed sooner, or seldom strike.
            let often = [Fault::Misdirected, Fault::Misdirected, Fault::Flip];
            lies.extend(often.into_iter().filter(|fault| self.plan.allows(*fault)));
        }
        if lies.is_empty() {
            return Ok(());
        }
        let before = (self.chain.clone(), self.pins.clone(), self.medium.clone());
        for _ in 0..if churns { EXAMS_OF_CHURN } else { EXAMS } {
            let fault = *self.random.pick(&lies);
            match self.lie_once(fault) {
                Ok(()) | Err(Stop::Over) => {}
                failed => return failed,
            }
            self.finish_counts();
            self.close_quietly();
            self.forget_lies();
            (self.chain, self.pins, self.medium) = before.clone();
            self.others.clear();
            self.other_pins.clear();
        }
        self.medium = self.medium.reboot(0);
        Ok(())
    }

    fn lie_once(&mut self, fault: Fault) -> Step {
        self.close_quietly();
        self.boot();
        self.open(At::Last)?;
        self.others.clear();
        self.other_pins.clear();
        if self.model.tables.is_empty() {
            // They went with a crash before the first commit.
            return Ok(());
        }
        // The head on this machine is that of the last commit, or the end of the journal could be
        // lost unnoticed.
        self.commit()?;
        if !self.head_is_current || self.is_poisoned() {
            return Ok(());
        }
        if self.plan.kind == Kind::Churn && fault.lies_in_writes() {
            // Every place has been filled before, with the same rows.
            for _ in 0..4 {
                self.rewrite()?;
                self.commit()?;
                if self.is_poisoned() {
                    return Ok(());
                }
            }
        }
        self.note(|| format!("the device lies once: {}", fault.name()));
        // Files of rows have fewest checks that others repeat.
        let about = if self.random.chance(2, 3) { "rows-" } else { "" };
        self.medium.lie_about(about);
        self.strike(fault);
        if fault.lies_in_writes() {
            for _ in 0..4 {
                match self.plan.kind {
                    Kind::Churn => {
                        self.rewrite()?;
                        self.commit()?;
                    }
                    _ => self.write_something()?,
                }
                self.lies_now();
                if self.is_doomed() || self.is_poisoned() {
                    break;
                }
            }
        }
        if self.is_poisoned() {
            return self.leave_poisoned();
        }
        if self.is_doomed() && self.random.chance(1, 2) {
            self.check_everything()?;
        }
        self.reopen()?;
        self.check_everything()?;
        Ok(())
    }
}
