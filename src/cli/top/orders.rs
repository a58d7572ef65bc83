//! What the user orders: another cap for a process, and the page of one.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};

use vramtrace_reader::units::{clean, size};

use super::state::Order;
use crate::cli::{cap, page};

/// The page that is being written.
#[derive(Default)]
pub struct Orders {
    writing: Option<Receiver<String>>,
}

impl Orders {
    /// Does what was ordered, or begins it. Returns what to tell the user.
    pub fn begin(&mut self, order: Order) -> String {
        match order {
            Order::Cap { pid, limit } => match cap::set_everywhere(pid, limit) {
                Ok(lines) => clean(&lines.trim_end().replace('\n', "; ")),
                Err(failure) => clean(&failure.message),
            },
            Order::Page { .. } if self.writing.is_some() => "the last page is being written".into(),
            Order::Page { pid, trace } => {
                let (send, receive) = channel();
                self.writing = Some(receive);
                let path = free_name(pid);
                let begun = format!("writing {}", path.display());
                // A long trace takes a while.
                std::thread::spawn(move || {
                    // Nobody waits for it if the terminal is lost.
                    let _ = send.send(written(&trace, &path));
                });
                begun
            }
        }
    }

    /// What to tell the user when the page is written.
    pub fn result(&mut self) -> Option<String> {
        let result = self.writing.as_ref()?.try_recv().ok()?;
        self.writing = None;
        Some(result)
    }

    /// Waits for the page that is being written.
    pub fn finish(self) -> Option<String> {
        self.writing?.recv().ok()
    }
}

/// `vramtrace-4711.html` in the working directory; `vramtrace-4711-2.html` if that exists.
fn free_name(pid: u32) -> PathBuf {
    let name = |number: u32| match number {
        1 => PathBuf::from(format!("vramtrace-{pid}.html")),
        _ => PathBuf::from(format!("vramtrace-{pid}-{number}.html")),
    };
    let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
    (1..10_000).map(name).find(is_free).unwrap_or_else(|| name(1))
}

fn written(trace: &Path, path: &Path) -> String {
    match page::write_one(trace, path) {
        Ok(()) => {
            let bytes = path.metadata().map_or(0, |meta| meta.len());
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
            let path = path.display().to_string();
            format!("{}: {}; open it in a browser", clean(&path), size(bytes))
        }
        Err(failure) => clean(&failure.message),
    }
}
