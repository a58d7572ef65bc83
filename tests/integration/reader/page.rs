//! `vramtrace report --html` as a command: its file and its options. What the page shows is tested in a
//! browser (`web/tests/`).

use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use testkit::Scratch;
use testkit::trace_builder::{cached, training};

/// The bytes of a section of a page.
pub fn section(page: &str, id: &str) -> Vec<u8> {
    let begin = format!("<script type=\"application/vnd.vramtrace\" id=\"{id}\">");
    let (_, rest) = page.split_once(&begin).expect("the section");
    let bytes = STANDARD.decode(rest.split_once("</script>").unwrap().0).unwrap();
    let mut plain = Vec::new();
    flate2::read::ZlibDecoder::new(&bytes[..]).read_to_end(&mut plain).unwrap();
    plain
}

fn scratch() -> Scratch {
    let scratch = Scratch::new();
    training().write(&scratch.0.join("a.vtrace"));
    let mut other = cached();
    other.header.uuid[0] ^= 1;
    other.write(&scratch.0.join("b.vtrace"));
    scratch
}

#[test]
fn one_file_that_only_its_owner_reads() {
    let scratch = scratch();
    scratch.text("report --html a.vtrace");
    let file = scratch.0.join("vramtrace.html");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let read = || std::fs::read_to_string(&file).unwrap();
    let streams = |page: &str| page.matches("application/vnd.vramtrace\" id=\"stream-").count();
    let page = read();
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert_eq!(streams(&page), 1);
    scratch.fails(2, "report --html a.vtrace", "vramtrace.html");
    assert_eq!(read(), page, "it is not replaced");
    scratch.text("report --html a.vtrace b.vtrace --force");
    assert_eq!(streams(&read()), 2);
}

#[test]
fn options_that_say_nothing_here_are_refused() {
    let scratch = scratch();
    for more in ["-o x.html", "--html --json", "--html --at peak"] {
        scratch.fails(2, &format!("report a.vtrace {more}"), "");
        assert!(!scratch.0.join("vramtrace.html").exists(), "{more}");
    }
}
