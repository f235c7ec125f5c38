//! The rows as a table and as a document.

use super::peer::Program;
use super::transport::Transport;
use super::{Against, Line, Outcome, Report, Row};
use crate::bench::rounds::Spread;
use crate::bench::work::BLOCK_BYTES;
use crate::machine;
use crate::vhost_client::Wait;
use serde_json::{Value, json};

pub const HEAD: [&str; 11] = [
    "4 KIB, RANDOM",
    "QD",
    "FIGURE",
    "TENUTO",
    "PEER",
    "TENUTO/PEER",
    "A/A",
    "CLIENT'S CEILING",
    "CPU US",
    "PEER'S CPU US",
    "WANTED",
];

impl Against {
    pub const fn name(self) -> &'static str {
        match self {
            Against::Auto => "auto",
            Against::Raw => "raw",
            Against::Server(Program::Qsd) => "qsd",
            Against::Server(program) => program.name(),
        }
    }

    const fn way(self, row: Row) -> &'static str {
        match self {
            Against::Auto | Against::Raw => "direct I/O, io_uring, same process",
            Against::Server(program) => program.way(row.is_of_memory()),
        }
    }

    fn transport(self, ours: Transport) -> Option<Transport> {
        match self {
            Against::Auto | Against::Raw => None,
            Against::Server(program) => Some(program.transport(ours)),
        }
    }
}

/// What the product is asked for: more requests at depth, or less time at depth 1. Through rings
/// only against the peer that the row is wanted against.
fn wanted(line: &Line, transport: Transport) -> &'static str {
    let (row, depth) = (line.row, line.depth);
    let Transport::VhostUser { wait, .. } = transport else {
        return match (row, depth) {
            (Row::WriteFlush, _) => "<= 1.1",
            (_, 1) => "<= 1.0",
            _ => ">= 1.0",
        };
    };
    if line.against != row.peer(transport, depth) {
        return "-";
    }
    match (row, depth) {
        (Row::RamRead, _) if wait == Wait::Events => "-",
        (Row::RamRead, 1) => "<= 0.2",
        (Row::RamRead | Row::StagedWrite, 2..) => ">= 3.0",
        (Row::SsdRead, 2..) => ">= 0.95",
        (Row::WriteFlush, 1) => "<= 1.1",
        _ => "-",
    }
}

fn figure(depth: usize) -> &'static str {
    match depth {
        1 => "p50_us",
        _ => "iops",
    }
}

fn text(spread: Option<Spread>, digits: usize) -> String {
    spread.map_or("-".into(), |it| it.text(1.0, digits))
}

fn median(spread: Option<Spread>, digits: usize) -> String {
    spread.map_or("-".into(), |it| format!("{:.digits$}", it.median))
}

pub fn cells(report: &Report, line: &Line) -> Vec<String> {
    let digits = usize::from(line.depth == 1);
    let name = format!("{}, {}", line.row.name(), line.against.name());
    let mut cells = vec![name, line.depth.to_string(), figure(line.depth).into()];
    match &line.outcome {
        Err(_) => cells.extend(["-"; 7].map(String::from)),
        Ok(it) => {
            let proven = it.unproven.is_none();
            let ratio = |spread| match proven {
                true => text(spread, 2),
                false => "not proven".into(),
            };
            cells.extend([
                median(it.ours, digits),
                median(it.peer, digits),
                ratio(it.compared.ratio),
                text(it.compared.same, 2),
                median(it.ceiling, digits),
                median(it.cpu_us[0], 1),
                median(it.cpu_us[1], 1),
            ]);
        }
    }
    cells.push(wanted(line, report.options.transport).into());
    cells
}

pub fn headline(report: &Report) -> String {
    let options = &report.options;
    format!(
        "{}; {} rounds of slots of {} s in turn; medians with intervals of 90 %\n{}",
        options.transport.text(),
        options.rounds,
        options.seconds,
        machine::text(),
    )
}

pub fn note(line: &Line) -> String {
    let name = format!("{} at {}", line.row.name(), line.depth);
    match &line.outcome {
        Err(error) => format!("{name}: {}", error.message),
        Ok(it) => format!("{name}, slots of {} s: {}", it.seconds, proof(line.row, it)),
    }
}

fn proof(row: Row, it: &Outcome) -> String {
    if let Some(why) = &it.unproven {
        return why.clone();
    }
    let counters = &it.counters;
    match row {
        Row::RamRead => format!(
            "{} reads, {} from RAM, {} from SSD, {} from the origin",
            counters.reads, counters.ram_hits, counters.ssd_hits, counters.origin_reads
        ),
        Row::SsdRead => format!(
            "{} MiB served, {} MiB read from the device (kernel: {} MiB), {} reads from RAM; \
             kernel for the peer: {} MiB",
            counters.read_bytes >> 20,
            counters.device_read_bytes >> 20,
            counters.kernel_read_bytes >> 20,
            counters.ram_hits,
            it.peer_device.unwrap_or_default().0 >> 20,
        ),
        Row::StagedWrite => format!(
            "{} writes, {} held back, {} writes of the log, {} MiB to the device",
            counters.writes,
            counters.held_writes,
            counters.log_writes,
            counters.kernel_write_bytes >> 20
        ),
        Row::WriteFlush => format!(
            "{} writes, {} flushes, {} writes of the log; an empty round trip takes {} us, without \
             two of them the ratio is {}",
            counters.writes,
            counters.flushes,
            counters.log_writes,
            text(it.null_us, 1),
            text(it.without_protocol, 2),
        ),
    }
}

pub fn document(report: &Report) -> Value {
    let options = &report.options;
    let (connections, queues, wait) = match options.transport {
        Transport::Nbd { connections } => (Some(connections), None, None),
        Transport::VhostUser { queues, wait } => (None, Some(queues), Some(wait)),
    };
    json!({
        "benchmark": "micro",
        "machine": machine::document(),
        "parameters": {
            "path": options.path.display().to_string(),
            "against": options.against.name(),
            "rounds": options.rounds,
            "seconds": options.seconds,
            "queue_depths": options.depths,
            "client": if queues.is_some() { "vhost-user" } else { "nbd" },
            "connections": connections,
            "queues": queues,
            "polling": wait.map(|wait| wait == Wait::Polling),
            "block_bytes": BLOCK_BYTES,
            "size_bytes": options.size_bytes,
            "transport": options.transport.text(),
        },
        "complete": report.is_complete(),
        "rows": report
            .lines
            .iter()
            .map(|line| line_document(line, options.transport))
            .collect::<Vec<Value>>(),
    })
}

fn line_document(line: &Line, transport: Transport) -> Value {
    let head = json!({
        "row": line.row.name(),
        "queue_depth": line.depth,
        "against": line.against.name(),
        "peer_serves": line.against.way(line.row),
        "peer_transport": line.against.transport(transport).map(Transport::text),
        "figure": figure(line.depth),
        "better": if line.depth == 1 { "lower" } else { "higher" },
        "wanted": wanted(line, transport),
    });
    let rest = match &line.outcome {
        Err(error) => json!({ "error": error.message }),
        Ok(it) => outcome_document(it),
    };
    let (Value::Object(mut head), Value::Object(rest)) = (head, rest) else {
        unreachable!("both are objects");
    };
    head.extend(rest);
    Value::Object(head)
}

fn outcome_document(it: &Outcome) -> Value {
    let spread = |it: Option<Spread>| it.map(|it| it.document());
    let proven = it.unproven.is_none();
    let counters = &it.counters;
    json!({
        "proven": proven,
        "unproven": it.unproven,
        "slot_seconds": it.seconds,
        "tenuto": spread(it.ours),
        "peer": spread(it.peer),
        "ratio": spread(it.compared.ratio.filter(|_| proven)),
        "a_a_ratio": spread(it.compared.same),
        "ceiling": spread(it.ceiling),
        "p99_us": spread(it.p99_us),
        "cpu_us_per_request": { "tenuto": spread(it.cpu_us[0]), "peer": spread(it.cpu_us[1]) },
        "null_round_trip_us": spread(it.null_us),
        "ratio_without_protocol": spread(it.without_protocol),
        "counters": {
            "reads": counters.reads,
            "read_bytes": counters.read_bytes,
            "ram_hits": counters.ram_hits,
            "ssd_hits": counters.ssd_hits,
            "origin_reads": counters.origin_reads,
            "writes": counters.writes,
            "flushes": counters.flushes,
            "held_writes": counters.held_writes,
            "log_writes": counters.log_writes,
            "ssd_write_bytes": counters.ssd_write_bytes,
            "device_read_bytes": counters.device_read_bytes,
            "kernel_read_bytes": counters.kernel_read_bytes,
            "kernel_write_bytes": counters.kernel_write_bytes,
            "peer_kernel_read_bytes": it.peer_device.map(|it| it.0),
            "peer_kernel_write_bytes": it.peer_device.map(|it| it.1),
        },
    })
}
