//! `--redact`: removes directories, command lines and host names from a page, so that it can be shown
//! to others. Names of files, functions and packages stay, because they identify the owner of memory.

use serde_json::Value;

/// The replacement for removed text.
const REDACTED: &str = "(redacted)";

/// What is removed.
#[derive(Clone, Debug, Default)]
pub struct Redaction {
    /// Names of hosts, which names of traces contain too. Names of one or two characters are ignored.
    pub hosts: Vec<String>,
}

impl Redaction {
    /// Redacts all strings of a document.
    pub fn apply(&self, document: &mut Value) {
        match document {
            Value::String(text) => *text = self.text(text),
            Value::Array(all) => all.iter_mut().for_each(|one| self.apply(one)),
            Value::Object(all) => {
                for (key, value) in all {
                    match (key.as_str(), &mut *value) {
                        ("command", Value::Array(words)) => {
                            *words = vec![Value::String(REDACTED.into())];
                        }
                        ("host", Value::String(host)) => *host = REDACTED.into(),
                        ("trace" | "name" | "label", Value::String(path)) if path.contains('/') => {
                            *path = self.text(path.rsplit('/').next().unwrap_or_default());
                        }
                        ("file", Value::String(path)) => {
                            *path = self.text(&without_directory(path))
                        }
                        ("files", Value::Array(paths)) => {
                            for path in paths {
                                if let Value::String(path) = path {
                                    *path = self.text(&without_directory(path));
                                }
                            }
                        }
                        (_, value) => self.apply(value),
                    }
                }
            }
            _ => {}
        }
    }

    /// Text with absolute paths shortened and host names replaced.
    fn text(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        let mut begins = true;
        while let Some(c) = rest.chars().next() {
            if c == '/' && begins {
                let end = rest.find(|c: char| c.is_whitespace() || "'\",;()<>".contains(c));
                let (path, after) = rest.split_at(end.unwrap_or(rest.len()));
                out.push_str(&without_directory(path));
                rest = after;
            } else {
                out.push(c);
                rest = &rest[c.len_utf8()..];
            }
            begins = c.is_whitespace() || "'\",;()<>=:".contains(c);
        }
        for host in self.hosts.iter().filter(|host| host.len() > 2) {
            out = out.replace(host.as_str(), REDACTED);
        }
        out
    }
}

/// The path below `site-packages` or `dist-packages`; of another file its name.
fn without_directory(path: &str) -> String {
    for directory in ["/site-packages/", "/dist-packages/"] {
        if let Some((_, rest)) = path.rsplit_once(directory) {
            return rest.to_string();
        }
    }
    path.rsplit('/').next().unwrap_or(path).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn directories_commands_and_hosts_go() {
        let mut document = json!({
            "host": "secret-node", "command": ["python", "--token", "x"],
            "trace": "/home/me/vramtrace.secret-node.1.vtrace",
            "files": ["/home/me/train.py", "/v/site-packages/torch/nn/module.py", "proj/a.py"],
            "evidence": ["it grew in /home/me/run/train.py:41 on secret-node, a/b stays"],
            "deep": [{ "file": "/home/me/x.py" }, { "file": "/home/me/secret-node.py" }],
        });
        Redaction { hosts: vec!["secret-node".into()] }.apply(&mut document);
        let text = document.to_string();
        for gone in ["secret-node", "/home", "token", "proj"] {
            assert!(!text.contains(gone), "{gone}: {text}");
        }
        for stays in ["train.py:41", "torch/nn/module.py", "a/b stays", "vramtrace.(redacted).1"] {
            assert!(text.contains(stays), "{stays}: {text}");
        }
    }
}
