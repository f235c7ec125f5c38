//! What goes over the wire between two hosts of this machine.
//!
//! Owns the look at the kernel's counters of their connections, and the time of an empty round
//! trip. Always true: bytes are those that a host has given to its connections with TLS in them,
//! without headers of TCP and IP; where `ss` (iproute2) does not run there is no number instead of
//! a guess. Deliberately absent: counters of the product.

use super::rounds::Spread;
use crate::stats::quantile;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

/// Of one measurement of round trips, in so many parts of which each has a median.
const ROUND_TRIPS: usize = 2000;
const PARTS: usize = 20;
const ROUND_TRIP_BYTES: usize = 64;

/// Bytes that the first host has sent to the others, and has received from them, over the
/// connections that are there now; with the little that the others say to each other.
pub fn sent_and_received(first: SocketAddr, others: &[SocketAddr]) -> Option<(u64, u64)> {
    let mut command = Command::new("ss");
    let mut ends = format!("( sport = :{}", first.port());
    for other in others {
        ends += &format!(" or dport = :{}", other.port());
    }
    ends += " )";
    command.args(["-tinH", "state", "established"]).arg(ends);
    let done = command.output().ok().filter(|done| done.status.success())?;
    Some(sum(&String::from_utf8_lossy(&done.stdout)))
}

/// Of the lines of all connections.
fn sum(text: &str) -> (u64, u64) {
    let of = |key: &str| {
        let words = text.split_whitespace();
        let values = words.filter_map(|word| word.strip_prefix(key)?.parse::<u64>().ok());
        values.sum()
    };
    (of("bytes_sent:"), of("bytes_received:"))
}

/// Microseconds of a small question and its answer over TCP on loopback, each between two threads
/// that sleep meanwhile.
pub fn round_trip_us() -> io::Result<Option<Spread>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut asks = TcpStream::connect(listener.local_addr()?)?;
    let (mut answers, _) = listener.accept()?;
    for stream in [&asks, &answers] {
        stream.set_nodelay(true)?;
    }
    std::thread::scope(|scope| {
        let answering = scope.spawn(move || -> io::Result<()> {
            let mut bytes = [0; ROUND_TRIP_BYTES];
            for _ in 0..ROUND_TRIPS {
                answers.read_exact(&mut bytes)?;
                answers.write_all(&bytes)?;
            }
            Ok(())
        });
        let mut took: Vec<Duration> = Vec::with_capacity(ROUND_TRIPS);
        let mut bytes = [0; ROUND_TRIP_BYTES];
        for _ in 0..ROUND_TRIPS {
            let begun = Instant::now();
            asks.write_all(&bytes)?;
            asks.read_exact(&mut bytes)?;
            took.push(begun.elapsed());
        }
        answering.join().expect("it does not panic")?;
        let parts = took.chunks_mut(ROUND_TRIPS / PARTS);
        let medians = parts.filter_map(|part| quantile(part, 50));
        Ok(Spread::of(medians.map(|it| it.as_secs_f64() * 1e6)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_all_connections_are_summed() {
        let text = "0 0 127.0.0.1:5 127.0.0.1:6\n\t bbr mss:9 bytes_sent:100 bytes_acked:101\n\
                    0 0 127.0.0.1:7 127.0.0.1:8\n\t bbr bytes_sent:5 bytes_received:7 segs:1\n";
        assert_eq!(sum(text), (105, 7));
    }
}
