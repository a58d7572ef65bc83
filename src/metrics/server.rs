//! A small HTTP/1.1 server for scrapes: GET of one path, one request a connection. Requests are parsed by `httparse`;
//! their size, their time and their number at once are bounded.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Sources;

/// Maximum number of connections that are served at once. Further ones get an answer that says so.
const MAX_CONNECTIONS: usize = 8;
/// Maximum size of a request's head in bytes, and number of headers.
const MAX_REQUEST_BYTES: usize = 8 << 10;
const MAX_HEADERS: usize = 64;
/// From the connection to the last byte of the answer.
const TIME: Duration = Duration::from_secs(10);

/// Answers scrapes until the process ends.
pub fn serve(listener: &TcpListener, sources: Sources) -> ! {
    // A client that leaves during the answer is an error of the writing.
    // SAFETY: no handler is involved.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    // Each connection has a place; its references are counted.
    let (sources, places) = (Arc::new(sources), Arc::new(()));
    loop {
        let Ok((connection, _)) = listener.accept() else {
            // Without descriptors; or the client left already.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let is_full = Arc::strong_count(&places) > MAX_CONNECTIONS;
        let (sources, place) = (sources.clone(), places.clone());
        let work = move || {
            let _place = place;
            // The client may have left.
            let _ = match is_full {
                true => respond(&connection, Instant::now() + TIME / 10, BUSY),
                false => answer(&connection, &sources),
            };
        };
        // Without a thread the connection is closed.
        let _ = std::thread::Builder::new().spawn(work);
    }
}

/// Status, with further headers, and text.
type Response<'a> = (&'static str, &'a str);

const OK: &str = "200 OK";
const BUSY: Response<'static> = ("503 Service Unavailable", "too many scrapes at once\n");
const TOO_LONG: Response<'static> =
    ("431 Request Header Fields Too Large", "the request is too long\n");
const NO_HTTP: Response<'static> = ("400 Bad Request", "this is no HTTP request\n");
const NOT_GET: Response<'static> =
    ("405 Method Not Allowed\r\nAllow: GET", "only GET is answered\n");
const NOT_FOUND: Response<'static> = ("404 Not Found", "the metrics are at /metrics\n");

fn answer(mut connection: &TcpStream, sources: &Sources) -> io::Result<()> {
    let until = Instant::now() + TIME;
    let mut bytes = Vec::new();
    let mut part = [0; 1024];
    loop {
        connection.set_read_timeout(Some(left(until)?))?;
        match connection.read(&mut part) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(got) => bytes.extend_from_slice(&part[..got]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        match parse(&bytes) {
            None => {}
            Some(Ok(())) => return respond(connection, until, (OK, &sources.text())),
            Some(Err(wrong)) => return respond(connection, until, wrong),
        }
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Whether the metrics are asked for. `None`: the head is not complete yet.
fn parse(bytes: &[u8]) -> Option<Result<(), Response<'static>>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    Some(match request.parse(bytes) {
        Ok(httparse::Status::Partial) if bytes.len() < MAX_REQUEST_BYTES => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => Err(TOO_LONG),
        Err(_) => Err(NO_HTTP),
        Ok(_) if request.method != Some("GET") => Err(NOT_GET),
        Ok(_) => match request.path.and_then(|path| path.split('?').next()) {
            Some("/metrics") => Ok(()),
            _ => Err(NOT_FOUND),
        },
    })
}

fn respond(
    mut connection: &TcpStream,
    until: Instant,
    (status, text): Response<'_>,
) -> io::Result<()> {
    let length = text.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    );
    let mut rest = answer.as_bytes();
    while !rest.is_empty() {
        connection.set_write_timeout(Some(left(until)?))?;
        match connection.write(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(wrote) => rest = &rest[wrote..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_get_of_metrics_is_answered_and_requests_are_bounded() {
        let get = "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n";
        let whole = format!("{get}\r\n");
        assert_eq!(parse(whole.as_bytes()), Some(Ok(())));
        let status = |text: &[u8]| match parse(text) {
            Some(Err((status, _))) => status[..3].parse::<u16>().unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!(status(b"POST /metrics HTTP/1.1\r\n\r\n"), 405);
        assert_eq!(status(b"GET / HTTP/1.1\r\n\r\n"), 404);
        assert_eq!(status(b"GET /metrics/../etc HTTP/1.1\r\n\r\n"), 404);
        assert_eq!(status(b"\x16\x03\x01\x02\x00"), 400, "TLS");
        assert_eq!(status(format!("{get}{}", "x".repeat(MAX_REQUEST_BYTES)).as_bytes()), 431);
        let many: String = (0..100).map(|n| format!("h{n}: 1\r\n")).collect();
        assert_eq!(status(format!("{get}{many}\r\n").as_bytes()), 431);
        // Each beginning waits for the rest.
        for end in 0..whole.len() {
            assert_eq!(parse(&whole.as_bytes()[..end]), None, "{end}");
        }
    }
}
