//! One line on stderr: `vramtrace: ...`, written at once, without a lock or an allocation.

use std::fmt::{Arguments, Write};

pub fn line(what: Arguments) {
    struct Line([u8; 1024], usize);
    impl Write for Line {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            let room = self.0.len() - 1 - self.1;
            let n = text.len().min(room);
            self.0[self.1..][..n].copy_from_slice(&text.as_bytes()[..n]);
            self.1 += n;
            Ok(())
        }
    }
    let mut line = Line([0; 1024], 0);
    let _ = write!(line, "vramtrace: {what}");
    line.0[line.1] = b'\n';
    unsafe { libc::write(2, line.0.as_ptr().cast(), line.1 + 1) };
}
