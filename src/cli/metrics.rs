//! `vramtrace metrics`: figures of all recorded processes of this node, for Prometheus.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

use crate::console::{message, print};
use crate::error::{DONE, Failure, Outcome};
use crate::metrics::{Sources, server};

/// Where it listens if no address is given: reachable from this machine only.
const DEFAULT: &str = "127.0.0.1:9477";

#[derive(clap::Args)]
#[command(
    long_about = "Export the figures of all recorded processes of this node to Prometheus: of your \
        own processes; as root, of all users. No process is stopped or asked.\n\n\
        Without --listen the metrics are printed once. Roles, verdicts and causes come from a pass \
        over the traces, at most once a minute; docs/metrics.md lists every metric with its source \
        and age, and two layouts for pods.",
    after_help = "Examples:\n  \
        vramtrace metrics                              print them once\n  \
        vramtrace metrics --listen                     at http://127.0.0.1:9477/metrics\n  \
        vramtrace metrics --listen 0.0.0.0:9477        on all networks of this machine"
)]
pub struct Args {
    /// Answer scrapes at this address [without a value: 127.0.0.1:9477]
    #[arg(long, value_name = "IP:PORT", num_args = 0..=1, default_missing_value = DEFAULT, value_parser = address)]
    listen: Option<SocketAddr>,
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    let first = text.to_socket_addrs().ok().and_then(|mut all| all.next());
    first.ok_or("an address and a port are needed, such as 127.0.0.1:9477 or [::1]:9477")
}

pub fn run(args: Args) -> Outcome {
    let Some(asked) = args.listen else {
        print(&Sources::start(true).text())?;
        return Ok(DONE);
    };
    let bound = TcpListener::bind(asked).and_then(|it| Ok((it.local_addr()?, it)));
    // If the port was 0, the system chose one.
    let (address, listener) =
        bound.map_err(|error| Failure::new(format!("--listen {asked}: {error}")))?;
    message(format_args!("metrics at http://{address}/metrics"));
    if !address.ip().to_canonical().is_loopback() {
        message(
            "all who reach this address can read them, without a password: 127.0.0.1 is for this machine",
        );
    }
    server::serve(&listener, Sources::start(false))
}
