//! A running `tests/programs/interactive.c`, which executes commands from stdin, line by line; or another
//! program that prints "ready" and reads commands.

use crate::{Program, Scratch, Setup};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

pub struct InteractiveProgram {
    pub child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    pub scratch: Scratch,
}

impl InteractiveProgram {
    /// Starts the program, and waits until it has its context.
    #[track_caller]
    pub fn start(setup: Setup) -> InteractiveProgram {
        InteractiveProgram::start_as("interactive", setup)
    }

    #[track_caller]
    pub fn start_as(program: &str, setup: Setup) -> InteractiveProgram {
        let scratch = setup.scratch();
        let stderr = std::fs::File::create(scratch.0.join("stderr")).unwrap();
        let mut child = setup
            .command(&Program::c(program).0, &scratch)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut program = InteractiveProgram { child, orders, answers, scratch };
        let ready = program.answer();
        assert_eq!(ready, "ready", "stderr: {}", program.stderr());
        program
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends an order, without waiting for the answer.
    pub fn order(&mut self, order: &str) {
        let orders = self.orders.as_mut().unwrap();
        writeln!(orders, "{order}").unwrap();
        orders.flush().unwrap();
    }

    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_string()
    }

    #[track_caller]
    pub fn ask(&mut self, order: &str) -> String {
        self.order(order);
        let answer = self.answer();
        assert!(!answer.is_empty(), "the program ended; stderr: {}", self.stderr());
        answer
    }

    /// The CUresult of an order.
    #[track_caller]
    pub fn result(&mut self, order: &str) -> i32 {
        self.ask(order).parse().unwrap()
    }

    /// Those of several orders, "a 100, f".
    #[track_caller]
    pub fn results(&mut self, orders: &str) -> Vec<i32> {
        orders.split(", ").map(|order| self.result(order)).collect()
    }

    pub fn stderr(&self) -> String {
        std::fs::read_to_string(self.scratch.0.join("stderr")).unwrap()
    }

    pub fn traces(&self) -> Vec<PathBuf> {
        self.scratch.traces()
    }

    /// Lets the program end, whether it has recorded anything or not.
    #[track_caller]
    pub fn finish(&mut self) {
        self.orders = None;
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.stderr());
    }

    /// Lets the program end, and returns its report.
    #[track_caller]
    pub fn end(&mut self) -> serde_json::Value {
        self.finish();
        let report = crate::report(&self.traces());
        report["processes"][0].clone()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for InteractiveProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
