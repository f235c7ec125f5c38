//! Arguments of the commands that drive the product instead of serving with it.

use super::bench_durability::BenchDurability;
use super::trace::format_named;
use crate::bench::cow;
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use workload::synth::DESKTOPS_MAX;
use workload::trace::Format;

/// Clones of an image and a disk that is kept, on raw images, on qcow2 overlays and on Tenuto
///
/// All on one simulated slow storage, in less than a minute. Prints what the storage had to serve,
/// what requests took by policy, and times, and writes a page with plots. Overlays need qemu-nbd
/// and qemu-img.
#[derive(Clone, Debug, Args)]
pub struct Demo {
    /// Where the report goes
    #[arg(
        long,
        visible_alias = "html",
        value_name = "FILE",
        default_value = "tenuto-demo.html"
    )]
    pub report: PathBuf,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Who drives the disks: guests in QEMU, emulated and for minutes if need be, the built-in
    /// client, or guests if hardware acceleration works here
    #[arg(long, value_enum, value_name = "WHO", default_value = "auto")]
    pub client: DemoClient,
    /// The same as --client builtin
    #[arg(long, visible_alias = "no-qemu", conflicts_with = "client")]
    pub no_guests: bool,
    /// Throw-away guests beside the one that is kept; without it, as many as suit this machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=32))]
    pub guests: Option<u16>,
    /// Kernel of the guests; without it, the newest one of this machine that can be read
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DemoClient {
    Auto,
    Qemu,
    Builtin,
}

/// Run the engine against a simulated host that is killed and loses power
#[derive(Clone, Debug, Args)]
pub struct Sim {
    /// Seed of the run; without it, one is chosen and printed
    #[arg(long)]
    pub seed: Option<u64>,
    /// Stop after this time; a seed that was asked for runs to its end
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub seconds: u64,
    /// Stop after this many seeds
    #[arg(long, value_name = "N")]
    pub seeds: Option<u64>,
    /// Operations of each seed
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub operations: u64,
    /// Fewer restarts than a seed has
    #[arg(long, value_name = "N")]
    pub restarts: Option<u32>,
    /// Leave these classes of guests, limits and faults out, with commas between
    #[arg(long, value_name = "FEATURES", value_delimiter = ',')]
    pub without: Vec<sim::swarm::Feature>,
    /// Report a failing seed as it is instead of looking for the smallest case of it
    #[arg(long)]
    pub no_shrink: bool,
    /// A rule that the simulated host breaks, for tests of this command
    #[arg(long, value_name = "RULE", hide = true)]
    #[arg(value_parser = ["cache-sync", "answers", "asserts"])]
    pub breaks: Option<String>,
}

/// Measure the running product or its engine
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Speed of the engine alone: write hits per second, bytes per extent
    Engine(BenchEngine),
    /// Single requests through NBD, against other servers and the bare device
    Micro(BenchMicro),
    /// Bursts of a database over a simulated SAN, short and sustained
    Burst(BenchBurst),
    /// How many desktops a simulated SAN carries, with the cache on their host, beside it, and with
    /// none
    Desktops(BenchDesktops),
    /// A week of an office under four policies, what reaches shared storage at its peaks
    Policies(BenchPolicies),
    /// Many hosts boot one image (not in this version)
    #[command(hide = true)]
    Storm(host::cli::later::Rest),
    /// Guest speed while a destage runs, against the same load without one, in alternating rounds
    Destage(BenchDestage),
    /// Latency of a guest beside a volume at its dirty limit, against the same guest alone
    Neighbour(BenchNeighbour),
    /// Guest speed while its requests are recorded, against the same load without that
    Record(BenchRecord),
    /// Start of the process to the first reply, after an orderly stop, a kill, a loss of power
    Restart(BenchRestart),
    /// Guest speed with copies of each write on other hosts, against the same load without one
    ///
    /// Starts three hosts of a cluster on this machine, and four volumes side by side: write-back
    /// without a copy, with one copy and with two, and write-through.
    Replicas(BenchReplicas),
    /// A host of a cluster is killed: the first answer at another one, and flushes meanwhile
    ///
    /// Starts two hosts of a cluster on this machine, and a volume with a copy. In each round the
    /// peer is killed under load and comes back, then the owner, and the guest goes on at the other
    /// host. Ends with code 1 if a write that was flushed is not there.
    Failover(BenchFailover),
    /// A guest moves to another host of a cluster: its reads there, and how long the move takes
    ///
    /// Starts two hosts of a cluster on this machine, over a simulated SAN. The guest reads until
    /// all is cached at its host, moves, and reads on at the other one: while the host before
    /// lives, and after that one was killed and has nothing left. Then the time from the guest's
    /// goodbye to its first answer is measured by what is dirty.
    Migrate(BenchMigrate),
    /// What a qcow2 clone costs more than a raw image: requests, destages, the guard, memory
    Images(BenchImages),
    /// The evaluation of the COWCache paper: a cache below copy-on-write against Tenuto, offline
    /// or live
    Cow(BenchCow),
    /// Durability by class of the data: what of writes may be late, and what of them reaches the
    /// storage
    ///
    /// figure10: writes of a browser, a mail program and an office program by class, from recorded
    /// traces and by the rules of `image split`. Without a trace the workloads run in a guest.
    /// figure13: heavy users with a disk for each class, what they ask of the caches and what
    /// reaches the storage. hosts: throw-away desktops on two hosts with one share.
    Durability(BenchDurability),
}

#[derive(Clone, Debug, Args)]
pub struct BenchMicro {
    /// A file on the device to be measured; files of the run lie beside it and go away with it,
    /// the file itself is not touched
    #[arg(long, value_name = "FILE")]
    pub path: PathBuf,
    /// How the product is asked
    #[arg(long, value_name = "CLIENT", default_value = "nbd")]
    #[arg(value_parser = ["nbd", "vhost-user"])]
    pub client: String,
    /// Look at the rings all the time instead of waiting to be called (vhost-user)
    #[arg(long)]
    pub polling: bool,
    /// Rings over which the requests are spread, 1 to 4 (vhost-user); default: 1
    #[arg(long, value_name = "N")]
    pub queues: Option<u16>,
    /// Whom to compare with; auto: nbdkit for ram-read and staged-write, qemu-nbd for ssd-read,
    /// the bare device for write-flush; through rings the bare device, and
    /// qsd for ram-read in depth
    #[arg(long, value_name = "PEER", default_value = "auto")]
    #[arg(value_parser = ["auto", "raw", "nbdkit", "qemu-nbd", "qsd"])]
    pub against: String,
    /// Which rows, with commas between; default: all. Hits in RAM, writes below the dirty limit,
    /// hits on the cache device, a write and the flush behind it
    #[arg(long, value_name = "ROWS", value_delimiter = ',')]
    #[arg(value_parser = ["ram-read", "staged-write", "ssd-read", "write-flush"])]
    pub rows: Vec<String>,
    /// Rounds in which everybody has a slot
    #[arg(long, value_name = "N", default_value_t = 15)]
    pub rounds: u32,
    /// Length of one slot
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    pub seconds: f64,
    /// Requests in flight, with commas between; write-flush has always one with --client nbd
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_value = "1,32"
    )]
    pub qd: Vec<usize>,
    /// NBD connections over which they are spread; default: 1
    #[arg(long, value_name = "N")]
    pub connections: Option<usize>,
    /// Size of the set of ssd-read
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub size: String,
}

/// A guest alone and beside something, over a simulated SAN.
#[derive(Clone, Debug, Args)]
pub struct BenchSlots {
    /// Latency of the simulated SAN
    #[arg(long, value_name = "TIME", default_value = "1ms")]
    pub origin_latency: String,
    /// Requests per second that the simulated SAN takes
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub origin_iops: u32,
    /// Rounds of three slots: alone, beside the neighbour or during the destage, alone again
    #[arg(long, value_name = "N", default_value_t = 15)]
    pub rounds: u32,
    /// Length of one slot
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    pub seconds: f64,
    /// Destage through a journal (atomic) or directly (in-place)
    #[arg(long, value_name = "MODE", default_value = "atomic")]
    #[arg(value_parser = ["in-place", "atomic"])]
    pub destage: String,
    /// Directory on the device that holds the cache; default: that of temporary files
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct BenchNeighbour {
    #[command(flatten)]
    pub slots: BenchSlots,
    /// Requests of the guest in a second
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub rate: u32,
}

#[derive(Clone, Debug, Args)]
pub struct BenchRecord {
    /// Rounds of six slots: alone, recorded, alone again, and the same backwards
    #[arg(long, value_name = "N", default_value_t = 15)]
    pub rounds: u32,
    /// Length of one slot
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    pub seconds: f64,
    /// Requests of the guest in flight
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub qd: usize,
    /// Directory on the device that holds the cache and the trace; default: that of temporary files
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct BenchRestart {
    /// Rounds of four starts: after an orderly stop, a kill, a kill with the stage gone, and a kill
    /// in a destage
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub rounds: u32,
    /// Size of the cache; only what is written to it takes room
    #[arg(long, value_name = "SIZE", default_value = "40GiB")]
    pub cache: String,
    /// Dirty data in scattered blocks of 4 KiB; at most a third of the cache, with --clones a
    /// sixteenth
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    pub dirty: String,
    /// So many more volumes of 64 MiB beside the dirty one, raw ones and qcow2 clones of one base
    /// in turn
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub clones: u32,
    /// Another version of the product, of the same cache format, to be started; default: this one
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Directory on the device that holds cache and image; default: that of temporary files
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct BenchReplicas {
    /// Which loads, with commas between: 64 KiB sequential writes; a database of 32 KiB pages with
    /// its log; 4 KiB writes with a flush behind each, one at a time; 4 KiB random writes
    #[arg(long, value_name = "LOADS", value_delimiter = ',')]
    #[arg(default_value = "fio,jetstress,write-flush,write")]
    #[arg(value_parser = ["fio", "jetstress", "write-flush", "write"])]
    pub loads: Vec<String>,
    /// Rounds of five slots of each load: no copy, one copy, two, write-through, no copy again
    #[arg(long, value_name = "N", default_value_t = 15)]
    pub rounds: u32,
    /// Length of one slot, which ends earlier when as much was asked for as the volume has
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    pub seconds: f64,
    /// Limit the cache device of each host, as in 200MiB/s, so that the processors of a small
    /// machine are not what is measured; needs root and control groups
    #[arg(long, value_name = "RATE")]
    pub device_rate: Option<String>,
    /// Size of the cache of each host
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    pub cache: String,
    /// Size of each volume, at most a ninety-sixth of the cache
    #[arg(long, value_name = "SIZE", default_value = "40MiB")]
    pub size: String,
    /// Directory on the device that holds the caches; default: that of temporary files
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct BenchFailover {
    /// Rounds of two kills
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub rounds: u32,
    /// How long the guest is watched before its peer is killed
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    pub seconds: f64,
    /// Size of the cache of each host
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub cache: String,
    /// Size of the volume, all of which is dirty; at most a quarter of the cache
    #[arg(long, value_name = "SIZE", default_value = "128MiB")]
    pub size: String,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Directory on the device that holds the caches; default: that of temporary files
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct BenchMigrate {
    /// Rounds of three moves, with remote reads, without, and with them again; and of one move with
    /// each amount of dirty data
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub rounds: u32,
    /// How long the guest is watched after a move
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    pub seconds: f64,
    /// What the guest reads, at most a quarter of the cache
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub size: String,
    /// Size of the cache of each host
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub cache: String,
    /// Dirty data when the guest moves, with commas between, each at most a quarter of the cache
    #[arg(long, value_name = "SIZE,SIZE", value_delimiter = ',')]
    #[arg(default_value = "0,64MiB,256MiB")]
    pub dirty: Vec<String>,
    /// Latency of the simulated SAN; 0ms: the images are as fast as their device
    #[arg(long, value_name = "TIME", default_value = "5ms")]
    pub origin_latency: String,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Directory on the device that holds the caches; default: that of temporary files
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct BenchImages {
    /// Which parts, with commas between: requests that no image is asked for, destages into new
    /// clones, the guard of an image under a desktop, the index of clean data
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    #[arg(default_value = "requests,destage,guard,index")]
    #[arg(value_parser = ["requests", "destage", "guard", "index"])]
    pub parts: Vec<String>,
    /// Rounds of six slots: raw, clone, raw again, and the same backwards
    #[arg(long, value_name = "N", default_value_t = 11)]
    pub rounds: u32,
    /// Length of one slot
    #[arg(long, value_name = "S", default_value_t = 0.15)]
    pub seconds: f64,
    /// Requests in flight, with commas between
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_value = "1,32"
    )]
    pub qd: Vec<usize>,
    /// Size of the cache
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub cache: String,
    /// Content of the raw image and of the base; both are disks of 16 GiB
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    pub data: String,
    /// Rounds of three destages: of the raw image, of a new clone, of the raw image again
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub destages: u32,
    /// Writes of 4 KiB before each destage, scattered over what has content
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub writes: u64,
    /// How long the guard is watched
    #[arg(long, value_name = "S", default_value_t = 45.0)]
    pub desktop_seconds: f64,
    /// Times of the desktop, and the 10 minutes until a destage, are divided by this
    #[arg(long, value_name = "N", default_value_t = 120.0)]
    pub scale: f64,
    /// Size of the cache whose index is measured when it is 85 % full: 512 MiB to the size of the
    /// content
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    pub fill: String,
    /// Seed of the desktop
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Directory on the device that holds cache and images; default: that of temporary files
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct BenchCow {
    /// Figures and tables of the paper, of which f9 and t1 are one run, and so are f12 and t2; all:
    /// those of the engine in virtual time, f9 to f15, t1, t2 and the memory of the index. f3:
    /// requests at the storage for one of the guest, beside qemu-storage-daemon. f4: blocks in
    /// pieces, and how whole the files are. live: requests per second of f10, f11 and f12 beside
    /// qemu-storage-daemon over a cache that knows nothing of its images, and over none. recovery:
    /// the dirty data of a dead host's cache
    #[arg(value_name = "EXPERIMENT", required = true)]
    #[arg(value_parser = PossibleValuesParser::new(experiments()))]
    pub experiments: Vec<String>,
    /// Numbers of requests are divided by this; 1: as many as in the paper
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    pub scale: f64,
    /// Seed of the loads
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A trace of one disk for f14 and f15, and for f3 beside the desktop, in a format of `trace
    /// info`; default: the synthetic week of a desktop
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// What the trace is in, where its beginning does not tell
    #[arg(long, value_name = "FORMAT", requires = "trace", value_parser = format_named)]
    pub format: Option<Format>,
    /// One HTML file with all tables and plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub live: BenchCowLive,
}

/// Of `bench cow` with f3, f4, live or recovery.
#[derive(Clone, Debug, Args)]
pub struct BenchCowLive {
    /// Rounds in which each side has its slots (live, f4, recovery); default: 5
    #[arg(long, value_name = "N")]
    pub rounds: Option<u32>,
    /// Length of one slot at most (live); default: 0.3
    #[arg(long, value_name = "S")]
    pub seconds: Option<f64>,
    /// Requests in flight (live, f3); default: 16, of f3 1
    #[arg(long, value_name = "N")]
    pub qd: Option<usize>,
    /// Size of the disk, all of which the base image has (live, f4); default: 1GiB
    #[arg(long, value_name = "SIZE")]
    pub data: Option<String>,
    /// Size of the cache, at least that of the disk (live, f4); default: 2GiB
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<String>,
    /// Latency of the simulated storage (live); default: 1ms
    #[arg(long, value_name = "TIME")]
    pub origin_latency: Option<String>,
    /// Requests per second that the simulated storage takes (live); default: 2000
    #[arg(long, value_name = "N")]
    pub origin_iops: Option<u32>,
    /// Operations of each kind that need a table each (f3); default: 64
    #[arg(long, value_name = "N")]
    pub far: Option<u64>,
    /// Operations of each kind that are close together (f3); default: 1024
    #[arg(long, value_name = "N")]
    pub near: Option<u64>,
    /// Dirty data that is recovered (recovery); default: 512MiB
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    /// Sizes of the writes that it came from, with commas between (recovery); default: 64KiB,4KiB
    #[arg(long, value_name = "SIZE,SIZE", value_delimiter = ',')]
    pub pieces: Option<Vec<String>>,
    /// Directory of the cache where it is not that of the images (recovery)
    #[arg(long, value_name = "DIR")]
    pub cache_path: Option<PathBuf>,
    /// Directory on the device that holds cache and images (live, f3, f4, recovery); default: that
    /// of temporary files
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,
}

impl BenchCowLive {
    pub fn is_given(&self) -> bool {
        let sizes = [&self.data, &self.cache, &self.origin_latency, &self.size];
        let numbers = [self.rounds, self.origin_iops];
        let counts = [self.far, self.near];
        let directories = [&self.path, &self.cache_path];
        self.seconds.is_some()
            || self.qd.is_some()
            || self.pieces.is_some()
            || sizes.iter().any(|it| it.is_some())
            || numbers.iter().any(Option::is_some)
            || counts.iter().any(Option::is_some)
            || directories.iter().any(|it| it.is_some())
    }
}

/// All that `bench cow` can be asked for.
fn experiments() -> Vec<&'static str> {
    let parts = cow::Part::ALL.iter().flat_map(|part| part.keys());
    let live = ["all", "live", "f3", "f4", "recovery"];
    live.into_iter().chain(parts.copied()).collect()
}

#[derive(Clone, Debug, Args)]
pub struct BenchDestage {
    #[command(flatten)]
    pub slots: BenchSlots,
    /// Requests of the guest in flight
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub qd: usize,
    /// Of a hundred requests, writes
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub writes: u32,
    /// Of a thousand requests, reads that only the origin has
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub misses: u32,
    /// Size of the cache
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    pub cache: String,
    /// Write the curves over time as a page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct BenchBurst {
    /// All times and limits are divided by this; 1 takes 36 minutes
    #[arg(long, value_name = "N", default_value_t = 20.0)]
    pub scale: f64,
    /// Destage through a journal (atomic) or directly (in-place)
    #[arg(long, value_name = "MODE", default_value = "in-place")]
    #[arg(value_parser = ["in-place", "atomic"])]
    pub destage: String,
    /// Where the page with the plots goes
    #[arg(
        long,
        alias = "report",
        value_name = "FILE",
        default_value = "tenuto-burst.html"
    )]
    pub html: PathBuf,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

#[derive(Clone, Debug, Args)]
pub struct BenchDesktops {
    /// Numbers of desktops, with commas between, up to 4096; each is measured by itself
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_value = "100,300,1000"
    )]
    pub users: Vec<u32>,
    /// What they do; those of boot and login come one after the other
    #[arg(long, value_name = "PATTERN", default_value = "office")]
    #[arg(value_parser = ["office", "heavy", "mixed", "login", "boot"])]
    pub pattern: String,
    /// Where the cache is, with commas between: none, beside the origin, on the host
    #[arg(long, value_name = "CASE,CASE", value_delimiter = ',')]
    #[arg(default_value = "none,beside,host", value_parser = ["none", "beside", "host"])]
    pub cases: Vec<String>,
    /// Policy of the volumes where there is a cache
    #[arg(long, value_name = "POLICY", default_value = "write-back")]
    #[arg(value_parser = ["write-back", "write-through", "ephemeral"])]
    pub policy: String,
    /// Latency of the simulated SAN
    #[arg(long, value_name = "TIME", default_value = "5ms")]
    pub origin_latency: String,
    /// Requests per second that the simulated SAN takes
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub origin_iops: u32,
    /// The part of its latency that a cache beside the origin does not spare; default: half
    #[arg(long, value_name = "TIME")]
    pub path_latency: Option<String>,
    /// Length of one case with one number of desktops
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    pub seconds: f64,
    /// Destage through a journal (atomic) or directly (in-place)
    #[arg(long, value_name = "MODE", default_value = "atomic")]
    #[arg(value_parser = ["in-place", "atomic"])]
    pub destage: String,
    /// Age at which dirty data goes to shared storage; short, so that a short run pays for it
    #[arg(long, value_name = "TIME", default_value = "20s")]
    pub destage_after: String,
    /// Size of the cache
    #[arg(long, value_name = "SIZE", default_value = "8GiB")]
    pub cache: String,
    /// Size of its read tier
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    pub ram: String,
    /// Which blocks of their own images are kept on the cache device
    #[arg(long, default_value = "reuse", value_parser = ["reuse", "all"])]
    pub admission: String,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Directory on the device that holds the cache; default: that of temporary files
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,
    /// Write the curves as a page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct BenchPolicies {
    /// Desktops of the office
    #[arg(long, value_name = "N", default_value_t = 55)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(DESKTOPS_MAX)))]
    pub desktops: u32,
    /// Size of the cache of all of them
    #[arg(long, value_name = "SIZE", default_value = "500GiB")]
    pub cache: String,
    /// Size of its read tier
    #[arg(long, value_name = "SIZE", default_value = "8GiB")]
    pub ram: String,
    /// Age at which dirty data goes to shared storage
    #[arg(long, value_name = "TIME", default_value = "10m")]
    pub destage_after: String,
    /// Destage through a journal (atomic) or directly (in-place)
    #[arg(long, value_name = "MODE", default_value = "atomic")]
    #[arg(value_parser = ["in-place", "atomic"])]
    pub destage: String,
    /// Which blocks are kept on the cache device
    #[arg(long, default_value = "all", value_parser = ["reuse", "all"])]
    pub admission: String,
    /// Desktops whose requests in the peaks are played again through QEMU's qcow2 driver, to count
    /// what qcow2 clones at the storage make of them; 0: none
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=16))]
    pub qcow2: u32,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A report with plots, into this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct BenchEngine {
    /// Extents in the map before measuring
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub extents: u64,
    /// Size of the volume over which they are scattered
    #[arg(long, value_name = "SIZE", default_value = "1TiB")]
    pub span: String,
    /// Write hits that are measured in each round
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    pub operations: u64,
    /// Rounds of each measurement, in turn; the median counts
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub rounds: u32,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}
