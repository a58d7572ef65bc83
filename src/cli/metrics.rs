//! `vramtrace metrics`: figures of all recorded processes of this node, for Prometheus.

use std::io::ErrorKind;

use crate::console::{message, print};
use crate::error::{DONE, Failure, Outcome};
use crate::metrics::address::{Address, DEFAULT};
use crate::metrics::server::Listener;
use crate::metrics::{Format, Sources};

#[derive(clap::Args)]
#[command(
    long_about = "Export the figures of all recorded processes of this node as OpenMetrics: of your \
        own processes; as root, of all users. No process is stopped or asked.\n\n\
        Without --listen the metrics are printed once. Roles, verdicts and causes come from a pass \
        over the traces, at most once a minute; docs/metrics.md lists every metric with its source \
        and age, and two layouts for pods.",
    after_help = "Examples:\n  \
        vramtrace metrics                              print them once\n  \
        vramtrace metrics --listen                     at http://127.0.0.1:9477/metrics\n  \
        vramtrace metrics --listen 0.0.0.0:9477        on all networks of this machine\n  \
        vramtrace metrics --listen unix:/run/vramtrace.sock"
)]
pub struct Args {
    /// Answer scrapes at this address: IP:PORT, or unix:PATH [without a value: 127.0.0.1:9477]
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = DEFAULT)]
    listen: Option<Address>,
}

pub fn run(args: Args) -> Outcome {
    let Some(address) = args.listen else {
        print(&Sources::once().text(Format::OpenMetrics))?;
        return Ok(DONE);
    };
    let listener = Listener::bind(&address).map_err(|error| not_bound(&address, &error))?;
    message(format!("metrics at {}", listener.address(&address)));
    if address.is_of_a_network() {
        message(
            "whoever reaches this address can read them, without a password: 127.0.0.1 and unix:PATH \
             are for this machine",
        );
    }
    listener.serve(Sources::start())
}

fn not_bound(address: &Address, error: &std::io::Error) -> Failure {
    match (address, error.kind()) {
        (Address::Tcp(at), ErrorKind::AddrInUse) => Failure::new(format!(
            "--listen {at}: port {} is in use; name another one, or end the program that listens there",
            at.port()
        )),
        (Address::Unix(path), ErrorKind::AddrInUse) => Failure::new(format!(
            "--listen unix:{}: the file exists and is in use or no socket of yours; name another path",
            path.display()
        )),
        (Address::Tcp(at), _) => Failure::new(format!("--listen {at}: {error}")),
        (Address::Unix(path), _) => {
            Failure::new(format!("--listen unix:{}: {error}", path.display()))
        }
    }
}
