//! torture
#![expect(clippy::print_stdout, reason = "it is a command")]
use embedrock_torture::{Counts, FaultSet, Habit, Limits, run};

fn main() {
    embedrock_core::keep_freed();
    let args: Vec<String> = std::env::args().collect();
    let (from, n) = (args[1].parse::<u64>().unwrap(), args[2].parse::<u64>().unwrap());
    let faults: FaultSet = args.get(3).map_or("all", String::as_str).parse().unwrap();
    let without = args.get(4).map_or("", String::as_str);
    let without = Habit::ALL.into_iter().filter(|h| without.split(',').any(|w| w == h.name())).collect();
    let limits = Limits { faults, without, ..Limits::default() };
    let mut counts = Counts::default();
    let begin = std::time::Instant::now();
    let mut failed = 0;
    for seed in from..from + n {
        if let Err(failure) = run(seed, &limits, &mut counts) {
            failed += 1;
            println!("seed {seed} op {}: {:.220}", failure.operation, failure.what);
            if n == 1 {
                println!("{}\n{}", failure.settings, failure.last.join("\n"));
            }
        }
    }
    println!("{counts:?}\n{failed} failed, {:?}", begin.elapsed());
}
