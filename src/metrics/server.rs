//! A small HTTP/1.1 server for scrapes: GET of one path, one request a connection. Requests are parsed by `httparse`;
//! their size, their time and their number at once are bounded.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::address::{self, Address};
use super::{Format, Sources};

/// Connections that are served at once. Further ones are told to come again.
const MOST_CONNECTIONS: usize = 8;
/// Bytes of a request's head.
const MOST_BYTES: usize = 8 << 10;
const MOST_HEADERS: usize = 64;
/// From the connection to the last byte of the answer.
const TIME: Duration = Duration::from_secs(10);

/// A bound address.
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub fn bind(address: &Address) -> io::Result<Listener> {
        match address {
            Address::Tcp(address) => TcpListener::bind(address).map(Listener::Tcp),
            Address::Unix(path) => address::bind(path).map(Listener::Unix),
        }
    }

    /// The address that the system chose, if the port was 0.
    pub fn address(&self, asked: &Address) -> Address {
        match (self, asked) {
            (Listener::Tcp(listener), _) => {
                listener.local_addr().map_or_else(|_| asked.clone(), Address::Tcp)
            }
            _ => asked.clone(),
        }
    }

    /// The next connection. What is called of it is the same for all sockets of streams.
    fn accept(&self) -> io::Result<UnixStream> {
        match self {
            Listener::Tcp(listener) => Ok(OwnedFd::from(listener.accept()?.0).into()),
            Listener::Unix(listener) => Ok(listener.accept()?.0),
        }
    }

    /// Answers scrapes until the process ends.
    pub fn serve(&self, sources: Sources) -> ! {
        // A client that leaves during the answer is an error of the writing.
        // SAFETY: no handler is involved.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        let (sources, connections) = (Arc::new(sources), Arc::new(AtomicUsize::new(0)));
        loop {
            let Ok(connection) = self.accept() else {
                // Without descriptors; or the client left already.
                std::thread::sleep(Duration::from_millis(50));
                continue;
            };
            let place = Place::take(&connections);
            let sources = sources.clone();
            let work = move || match place {
                Some(_place) => answer(&connection, &sources),
                None => {
                    let until = Instant::now() + TIME / 10;
                    let _ = respond(
                        &connection,
                        until,
                        BUSY,
                        "text/plain",
                        "too many scrapes at once\n",
                    );
                }
            };
            // Without a thread the connection is closed.
            let _ = std::thread::Builder::new().spawn(work);
        }
    }
}

/// One of the connections that are served at once.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(all: &Arc<AtomicUsize>) -> Option<Place> {
        let taken = all.fetch_add(1, Ordering::SeqCst);
        let place = Place(all.clone());
        (taken < MOST_CONNECTIONS).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

const BUSY: &str = "503 Service Unavailable";

/// What a client asks for.
#[derive(Debug, PartialEq)]
enum Request {
    Metrics {
        format: Format,
        head: bool,
    },
    /// Status, with further headers, and text.
    Wrong(&'static str, &'static str),
}

fn answer(connection: &UnixStream, sources: &Sources) {
    let until = Instant::now() + TIME;
    let Ok(request) = read(connection, until) else { return };
    // The client may have left.
    let _ = match request {
        Request::Metrics { format, head } => {
            let text = sources.text(format);
            let kind = format.content_type();
            match head {
                true => send(connection, until, &headers("200 OK", kind, &text)),
                false => respond(connection, until, "200 OK", kind, &text),
            }
        }
        Request::Wrong(status, text) => respond(connection, until, status, "text/plain", text),
    };
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn read(mut connection: &UnixStream, until: Instant) -> io::Result<Request> {
    let mut bytes = Vec::new();
    let mut part = [0; 1024];
    loop {
        connection.set_read_timeout(Some(left(until)?))?;
        let got = match connection.read(&mut part) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(got) => got,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        bytes.extend_from_slice(&part[..got]);
        if let Some(request) = parse(&bytes) {
            return Ok(request);
        }
    }
}

/// `None`: the head is not complete yet.
fn parse(bytes: &[u8]) -> Option<Request> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) if bytes.len() < MOST_BYTES => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Some(Request::Wrong(
                "431 Request Header Fields Too Large",
                "the request is too long\n",
            ));
        }
        Err(_) => return Some(Request::Wrong("400 Bad Request", "this is no HTTP request\n")),
        Ok(httparse::Status::Complete(_)) => {}
    }
    let head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => {
            return Some(Request::Wrong(
                "405 Method Not Allowed\r\nAllow: GET, HEAD",
                "only GET is answered\n",
            ));
        }
    };
    let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
    if path != "/metrics" {
        return Some(Request::Wrong("404 Not Found", "the metrics are at /metrics\n"));
    }
    let accept = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("accept"));
    let accept = accept.map_or("", |header| std::str::from_utf8(header.value).unwrap_or_default());
    Some(Request::Metrics { format: Format::accepted(accept), head })
}

fn headers(status: &str, kind: &str, text: &str) -> String {
    let length = text.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )
}

fn respond(
    connection: &UnixStream,
    until: Instant,
    status: &str,
    kind: &str,
    text: &str,
) -> io::Result<()> {
    send(connection, until, &(headers(status, kind, text) + text))
}

fn send(mut connection: &UnixStream, until: Instant, answer: &str) -> io::Result<()> {
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
        let metrics = |format, head| Some(Request::Metrics { format, head });
        let get = "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n";
        assert_eq!(parse(format!("{get}\r\n").as_bytes()), metrics(Format::Plain, false));
        assert_eq!(
            parse(format!("{get}ACCEPT: application/openmetrics-text\r\n\r\n").as_bytes()),
            metrics(Format::OpenMetrics, false)
        );
        assert_eq!(parse(b"HEAD /metrics HTTP/1.0\r\n\r\n"), metrics(Format::Plain, true));
        let status = |text: &[u8]| match parse(text) {
            Some(Request::Wrong(status, _)) => status[..3].parse::<u16>().unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!(status(b"POST /metrics HTTP/1.1\r\n\r\n"), 405);
        assert_eq!(status(b"GET / HTTP/1.1\r\n\r\n"), 404);
        assert_eq!(status(b"GET /metrics/../etc HTTP/1.1\r\n\r\n"), 404);
        assert_eq!(status(b"\x16\x03\x01\x02\x00"), 400, "TLS");
        assert_eq!(status(format!("{get}{}", "x".repeat(MOST_BYTES)).as_bytes()), 431);
        let many: String = (0..100).map(|n| format!("h{n}: 1\r\n")).collect();
        assert_eq!(status(format!("{get}{many}\r\n").as_bytes()), 431);
        // Each beginning waits for the rest.
        let whole = format!("{get}\r\n");
        for end in 0..whole.len() {
            assert_eq!(parse(&whole.as_bytes()[..end]), None, "{end}");
        }
    }

    #[test]
    fn places_are_given_back() {
        let all = Arc::new(AtomicUsize::new(0));
        let taken: Vec<_> = (0..MOST_CONNECTIONS).map(|_| Place::take(&all)).collect();
        assert!(taken.iter().all(Option::is_some));
        assert!(Place::take(&all).is_none());
        drop(taken);
        assert!(Place::take(&all).is_some());
        assert_eq!(all.load(Ordering::SeqCst), 0);
    }
}
