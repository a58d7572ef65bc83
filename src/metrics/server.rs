//! A small HTTP/1.1 server for scrapes: GET of one path, one request a connection. Requests are parsed by `httparse`;
//! their size, their time and their number at once are bounded.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
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

    fn accept(&self) -> io::Result<Box<dyn Connection>> {
        Ok(match self {
            Listener::Tcp(listener) => Box::new(listener.accept()?.0),
            Listener::Unix(listener) => Box::new(listener.accept()?.0),
        })
    }

    /// Answers scrapes until the process ends.
    pub fn serve(&self, sources: Sources) -> ! {
        // A client that leaves during the answer is an error of the writing.
        // SAFETY: no handler is involved.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        let (sources, connections) = (Arc::new(sources), Arc::new(AtomicUsize::new(0)));
        loop {
            let Ok(mut connection) = self.accept() else {
                // Without descriptors; or the client left already.
                std::thread::sleep(Duration::from_millis(50));
                continue;
            };
            let place = Place::take(&connections);
            let sources = sources.clone();
            let work = move || match place {
                Some(_place) => answer(&mut *connection, &sources),
                None => drop(respond(
                    &mut *connection,
                    Instant::now() + TIME / 10,
                    503,
                    "text/plain",
                    "too many scrapes at once\n",
                    false,
                )),
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

trait Connection: Read + Write + Send {
    /// The next reading and writing take at most so long.
    fn set_timeout(&self, most: Duration) -> io::Result<()>;
}

macro_rules! connections {
    ($($stream:ty),*) => {$(
        impl Connection for $stream {
            fn set_timeout(&self, most: Duration) -> io::Result<()> {
                self.set_read_timeout(Some(most))?;
                self.set_write_timeout(Some(most))
            }
        }
    )*};
}

connections!(TcpStream, UnixStream);

/// What a client asks for.
#[derive(Debug, PartialEq)]
enum Request {
    Metrics {
        format: Format,
        head: bool,
    },
    /// Status and text.
    Wrong(u16, &'static str),
}

fn answer(connection: &mut dyn Connection, sources: &Sources) {
    let until = Instant::now() + TIME;
    let Ok(request) = read(connection, until) else { return };
    // The client may have left.
    let _ = match request {
        Request::Metrics { format, head } => {
            let text = sources.text(format);
            respond(connection, until, 200, format.content_type(), &text, head)
        }
        Request::Wrong(status, text) => {
            respond(connection, until, status, "text/plain", text, false)
        }
    };
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn read(connection: &mut dyn Connection, until: Instant) -> io::Result<Request> {
    let mut bytes = Vec::new();
    let mut part = [0; 1024];
    loop {
        connection.set_timeout(left(until)?)?;
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
            return Some(Request::Wrong(431, "the request is too long\n"));
        }
        Err(_) => return Some(Request::Wrong(400, "this is no HTTP request\n")),
        Ok(httparse::Status::Complete(_)) => {}
    }
    let head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Some(Request::Wrong(405, "only GET is answered\n")),
    };
    let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
    if path != "/metrics" {
        return Some(Request::Wrong(404, "the metrics are at /metrics\n"));
    }
    let accept = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("accept"));
    let accept = accept.map_or("", |header| std::str::from_utf8(header.value).unwrap_or_default());
    Some(Request::Metrics { format: Format::accepted(accept), head })
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        _ => "Service Unavailable",
    }
}

fn respond(
    connection: &mut dyn Connection,
    until: Instant,
    status: u16,
    kind: &str,
    text: &str,
    head_only: bool,
) -> io::Result<()> {
    let allow = if status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    let mut answer = format!(
        "HTTP/1.1 {status} {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        reason(status),
        text.len()
    );
    if !head_only {
        answer.push_str(text);
    }
    let mut rest = answer.as_bytes();
    while !rest.is_empty() {
        connection.set_timeout(left(until)?)?;
        match connection.write(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(wrote) => rest = &rest[wrote..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    connection.flush()
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
            Some(Request::Wrong(status, _)) => status,
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
