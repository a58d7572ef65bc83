//! What each key changes in the state.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use vramtrace_format::capspec::Limit;
use vramtrace_format::policy;
use vramtrace_reader::units::{clean, size};

use super::state::{Input, Order, State, View};

/// The keys, for `?` and the documentation.
pub const KEYS: [(&str, &str); 11] = [
    ("up, down", "choose a process; in an opened one, scroll its lines"),
    ("Enter", "open the process: its lines with their callers, roles, segments"),
    ("Esc", "back; in the list, clear the filter"),
    ("s", "sort by the next column"),
    ("/", "filter by text: pid, user, rank, command"),
    ("c", "set the cap of the process, as `vramtrace cap` does; asks first"),
    ("o", "write the page of the process, as `vramtrace report --html` does"),
    ("d", "compare the lines with those when it was opened; again: all lines"),
    ("p", "pause"),
    ("?", "this list"),
    ("q", "quit"),
];

impl State {
    pub fn key(&mut self, key: KeyEvent) {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            self.is_left = true;
            return;
        }
        self.message = None;
        match std::mem::take(&mut self.input) {
            Input::Keys => self.command(key.code),
            Input::Filter => self.filter_key(key.code),
            Input::Cap { pid, text } => self.cap_key(pid, text, key.code),
            Input::Sure { pid, limit, .. } => match key.code {
                KeyCode::Char('y' | 'Y') => self.order = Some(Order::Cap { pid, limit }),
                _ => self.message = Some("the cap stays as it is".into()),
            },
            Input::Help => {}
        }
        self.keep_chosen();
    }

    fn filter_key(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => return,
            KeyCode::Esc => return self.filter.clear(),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) if !c.is_control() => self.filter.push(c),
            _ => {}
        }
        self.input = Input::Filter;
    }

    fn cap_key(&mut self, pid: u32, mut text: String, key: KeyCode) {
        match key {
            KeyCode::Esc => {
                return self.message = Some("the cap stays as it is".into());
            }
            KeyCode::Enter => return self.ask(pid, &text),
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Char(c) if !c.is_control() => text.push(c),
            _ => {}
        }
        self.input = Input::Cap { pid, text };
    }

    /// Asks whether the process shall get the cap that was typed.
    fn ask(&mut self, pid: u32, text: &str) {
        match self.question(pid, text.trim()) {
            Ok((limit, question)) => self.input = Input::Sure { pid, limit, question },
            Err(why) => self.message = Some(why),
        }
    }

    /// The limit that was typed, and the question; or why there is none.
    fn question(&self, pid: u32, text: &str) -> Result<(Option<Limit>, String), String> {
        let wrong = |why| clean(&format!("cap `{text}`: {why}; or `none`"));
        let limit = match text {
            "none" => None,
            text => Some(policy::soft(text).map_err(wrong)?),
        };
        let row = self.row_of(pid).ok_or_else(|| format!("pid {pid} has ended"))?;
        let follows = limit.map_or(Ok(String::new()), |limit| row.consequence(limit))?;
        let what = match limit {
            None => format!("remove the cap of pid {pid}"),
            Some(Limit::Bytes(bytes)) => format!("cap pid {pid} at {}", size(bytes)),
            Some(Limit::Share(_)) => format!("cap pid {pid} at {}", clean(text)),
        };
        Ok((limit, format!("{what}{follows}? y/n")))
    }

    fn command(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char('q') => self.is_left = true,
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('?') => self.input = Input::Help,
            KeyCode::Char('/') => (self.input, self.view) = (Input::Filter, View::List),
            KeyCode::Char('c') => self.begin_cap(),
            KeyCode::Char('o') => self.order_page(),
            KeyCode::Char('d') => match self.view {
                View::Process(_) => (self.compares, self.scrolled) = (!self.compares, 0),
                View::List => self.message = Some("d compares in an opened process: Enter".into()),
            },
            KeyCode::Up => self.step(-1),
            KeyCode::Down => self.step(1),
            KeyCode::PageUp => self.step(-10),
            KeyCode::PageDown => self.step(10),
            KeyCode::Home => self.step(isize::MIN),
            KeyCode::End => self.step(isize::MAX),
            KeyCode::Enter => {
                if let (View::List, Some(pid)) = (self.view, self.chosen) {
                    self.open(pid);
                }
            }
            KeyCode::Esc => match self.view {
                View::Process(_) => self.view = View::List,
                View::List => self.filter.clear(),
            },
            _ => {}
        }
    }

    fn begin_cap(&mut self) {
        let Some(row) = self.subject() else { return };
        let pid = row.pid;
        match row.page {
            Some(_) => self.input = Input::Cap { pid, text: String::new() },
            None => {
                self.message =
                    Some(format!("pid {pid} runs without your recorder: it has no cap to change"));
            }
        }
    }

    fn order_page(&mut self) {
        let Some(pid) = self.subject().map(|row| row.pid) else { return };
        match self.trace_of(pid) {
            Some(trace) => self.order = Some(Order::Page { pid, trace }),
            None => self.message = Some(format!("pid {pid} has no trace: there is no page of it")),
        }
    }

    fn step(&mut self, by: isize) {
        if let View::Process(_) = self.view {
            let last = self.listed_lines().len().saturating_sub(1);
            self.scrolled = self.scrolled.saturating_add_signed(by).min(last);
            return;
        }
        let rows = self.rows();
        let at = rows.iter().position(|row| Some(row.pid) == self.chosen).unwrap_or(0);
        let next = at.saturating_add_signed(by).min(rows.len().saturating_sub(1));
        self.chosen = rows.get(next).map(|row| row.pid);
    }
}
