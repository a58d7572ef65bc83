//! Line tables of real Pythons: every instruction's line as Python itself tells it.

use std::process::Command;

use serde_json::Value;
use vramtrace_format::lines;

#[test]
fn every_instruction_has_the_line_that_python_says() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/line_tables.py");
    let interpreters = testkit::pythons();
    assert!(!interpreters.is_empty(), "no Python 3.8 or later to compare with: install python3");
    for (_, interpreter) in interpreters {
        let output = Command::new(&interpreter).arg(script).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {printed}", interpreter.display());
        let mut compared = 0;
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let code: Value = serde_json::from_str(line).unwrap();
            let minor = code["minor"].as_u64().unwrap() as u8;
            let first = code["first"].as_i64().unwrap() as i32;
            let table = code["table"].as_str().unwrap().as_bytes();
            let table: Vec<u8> = table
                .chunks(2)
                .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
                .collect();
            for pair in code["lines"].as_array().unwrap() {
                let at = pair[0].as_i64().unwrap() as i32;
                let expected = pair[1].as_u64().map(|line| line as u32);
                let found = lines::line(minor, first, &table, at);
                let python = interpreter.display();
                assert_eq!(found, expected, "{python}: 3.{minor}, first line {first}, at {at}");
                compared += 1;
            }
        }
        assert!(compared > 5_000, "{}: {compared} instructions", interpreter.display());
    }
}
