//! The program as `embedrock bench cache` talks to it: a line of JSON in, a line of JSON out.

use std::io::Write;
use std::process::{Command, Stdio};

#[test]
fn each_line_is_answered_and_a_bad_one_says_what_is_wrong() {
    let good = concat!(
        r#"{"workload":{"ids":500,"skew":{"share":[0.8,0.2]},"drift":0.02,"batches":3,"#,
        r#""batch":256,"seed":1},"capacity":{"distinct":0.5},"policy":"lfu","threads":2,"#,
        r#""cache":{"sets":{"ways":8,"prefetching":true}},"warm_batches":1}"#
    );
    let mut program = Command::new(env!("CARGO_BIN_EXE_embedrock-cachebench"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let unknown = good.replace("threads", "thread");
    let text = format!("{good}\n{unknown}\nno json\n{good}\n");
    program.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let done = program.wait_with_output().unwrap();
    assert!(done.status.success());
    let lines: Vec<serde_json::Value> = String::from_utf8(done.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 4);
    for answer in [&lines[0], &lines[3]] {
        assert_eq!(answer["accesses"], 512);
        assert_eq!(answer["mismatches"], 0);
        assert!(answer["seconds"].as_f64().unwrap() > 0.0);
    }
    assert!(lines[1]["error"].as_str().unwrap().contains("unknown field `thread`"), "{}", lines[1]);
    assert!(lines[2]["error"].is_string(), "{}", lines[2]);
}
