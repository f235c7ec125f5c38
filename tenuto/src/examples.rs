//! Examples of each verb, for `--help` and the manual pages.
//!
//! Owns the lines, and puts them below the help of their commands. Always true: each verb that is
//! shown has some, and each line is one that the command line takes; a test holds it. Deliberately
//! absent: what the verbs mean, which is in their own words.

use clap::Command;

/// What stands above the lines.
pub const HEAD: &str = "Examples:";

/// The words of a verb, and lines without the program's name.
type Verb = (&'static str, &'static [&'static str]);

const PRODUCT: &[Verb] = &[
    (
        "serve",
        &["serve", "-c /etc/tenuto/tenuto.toml serve --strict"],
    ),
    (
        "try",
        &[
            "try /srv/vms/desk-001.qcow2",
            "try disk.img --policy ephemeral --cache 2G",
        ],
    ),
    ("status", &["status", "status -x", "status --json"]),
    ("top", &["top", "top --json -n 5"]),
    (
        "events",
        &[
            "events --follow",
            "events --volume desk-001 --severity warning",
        ],
    ),
    (
        "config",
        &[
            "config --check",
            "config --check new.toml",
            "config --explain",
        ],
    ),
    (
        "recover",
        &[
            "recover --cache /dev/nvme1n1 --dry-run",
            "recover --cache /dev/nvme1n1",
            "recover --cache /dev/nvme1n1 --fenced",
        ],
    ),
    ("drain", &["drain", "drain --no-wait", "drain --undo"]),
    ("reload", &["config --check", "reload"]),
    ("version", &["version", "version --json"]),
    ("man", &["man", "man --dir /usr/local/share/man/man1"]),
    ("completions", &["completions bash", "completions zsh"]),
];

const VOLUME: &[Verb] = &[
    (
        "volume ls",
        &["volume ls", "volume ls --names", "volume ls --json"],
    ),
    (
        "volume show",
        &[
            "volume show desk-001",
            "volume show desk-001 --qemu --memory 4G",
            "volume show db-data db-log --libvirt --target vdb",
            "volume show desk-001 --cloud-hypervisor --memory 4G",
        ],
    ),
    (
        "volume add",
        &[
            "volume add desk-001 origin=/mnt/nfs/vms/desk-001.qcow2",
            "volume add scratch origin=/srv/gold.img format=raw policy=ephemeral",
            "volume add desk-002 origin=/mnt/nfs/d2.qcow2 --clone-of /mnt/nfs/gold.qcow2",
        ],
    ),
    (
        "volume set",
        &[
            "volume set desk-001 destage-after=30min dirty-limit=8G",
            "volume set desk-001 policy=write-through --wait",
        ],
    ),
    (
        "volume rm",
        &[
            "volume rm desk-001",
            "volume rm desk-001 --discard-dirty=desk-001",
        ],
    ),
    (
        "volume destage",
        &["volume destage desk-001 --wait", "volume destage --all"],
    ),
    (
        "volume reset",
        &["volume reset scratch", "volume reset scratch --json"],
    ),
    (
        "volume commit",
        &["volume commit scratch", "volume show scratch"],
    ),
    (
        "volume snapshot",
        &[
            "volume snapshot desk-001",
            "volume snapshot desk-001 before-update",
        ],
    ),
    (
        "volume merge",
        &["volume merge desk-001", "volume merge desk-001 --remove"],
    ),
    (
        "volume rebase",
        &[
            "volume rebase desk-001 /mnt/nfs/gold-2.qcow2 --format qcow2",
            "volume rebase desk-001 --flatten",
        ],
    ),
    (
        "volume resize",
        &["volume resize desk-001 60G", "volume resize desk-001 +8GiB"],
    ),
    (
        "volume quiesce",
        &[
            "volume quiesce desk-001",
            "volume quiesce desk-001 --checkpoint monday",
            "volume quiesce desk-001 --agent /run/qga.sock",
            "volume quiesce desk-001 --through",
        ],
    ),
    (
        "volume resume",
        &[
            "volume quiesce desk-001",
            "volume quiesce desk-001 --checkpoint monday",
            "volume resume desk-001",
        ],
    ),
    (
        "volume device",
        &[
            "volume device desk-001",
            "volume device desk-001 --by nbd",
            "volume device desk-001 --detach",
        ],
    ),
    (
        "volume map",
        &["volume map desk-001", "volume map desk-001 --json"],
    ),
    (
        "volume accept-loss",
        &[
            "volume show desk-001",
            "volume accept-loss desk-001 --discard-dirty=desk-001",
        ],
    ),
    ("volume move", &["volume move desk-001 --to host-b"]),
    (
        "volume checkpoint",
        &[
            "volume checkpoint desk-001 monday",
            "volume checkpoint desk-001 --list",
            "volume checkpoint desk-001 --map monday --json",
        ],
    ),
    (
        "volume takeover",
        &[
            "volume takeover desk-001 --overwrite=desk-001",
            "volume takeover desk-001 --fenced",
        ],
    ),
];

const STORAGE: &[Verb] = &[
    (
        "cache create",
        &[
            "cache create /dev/nvme1n1",
            "cache create /var/lib/tenuto/cache --size 64G",
        ],
    ),
    (
        "cache inspect",
        &[
            "cache inspect /dev/nvme1n1",
            "cache inspect /dev/nvme1n1 --json",
        ],
    ),
    (
        "cache verify",
        &[
            "cache verify /dev/nvme1n1",
            "cache verify /var/lib/tenuto/cache",
        ],
    ),
    (
        "cache scrub",
        &[
            "cache scrub /dev/nvme1n1",
            "cache scrub /var/lib/tenuto/cache --json",
        ],
    ),
    ("cache resize", &["cache resize /var/lib/tenuto/cache 128G"]),
    (
        "origin inspect",
        &["origin inspect /mnt/nfs/vms/desk-001.qcow2"],
    ),
    (
        "origin replay",
        &["origin replay /mnt/nfs/vms/desk-001.qcow2"],
    ),
    (
        "image info",
        &["image info disk.qcow2", "image info disk.qcow2 --json"],
    ),
    (
        "image check",
        &["image check disk.qcow2", "image check disk.qcow2 --json"],
    ),
    (
        "image map",
        &["image map disk.qcow2", "image map disk.qcow2 --json"],
    ),
    (
        "image split",
        &[
            "image split desk.qcow2 --rules linux -o /srv/desk --trust-image --plan",
            "image split desk.qcow2 --rules linux -o /srv/desk --trust-image",
            "image split desk.qcow2 --rules rules.toml -o /srv/desk --trust-image --yes --json",
        ],
    ),
];

const CLUSTER: &[Verb] = &[
    (
        "cluster init",
        &[
            "cluster init c1 --listen 10.0.0.1:7440",
            "cluster init c1 --listen 10.0.0.1:7440 --vault dir:/mnt/shared/tenuto --domain rack-1",
        ],
    ),
    ("cluster token", &["cluster token"]),
    (
        "cluster join",
        &["cluster join TOKEN --listen 10.0.0.2:7440 --domain rack-2"],
    ),
    ("cluster check", &["cluster check", "cluster check --json"]),
    ("cluster leave", &["drain", "cluster leave"]),
    ("cluster forget", &["peer ls", "cluster forget host-c"]),
    (
        "advise",
        &["advise", "advise desk-001 desk-002", "advise --json"],
    ),
    ("peer ls", &["peer ls", "peer ls --json"]),
];

const POOLS: &[Verb] = &[
    ("pool ls", &["pool ls", "pool ls --json"]),
    ("pool show", &["pool show office"]),
    (
        "pool refresh",
        &[
            "pool refresh office /mnt/nfs/gold/office-8.img --wait",
            "pool refresh office office-8.img --canary desk-001 --percent 10,50 --soak 30m",
            "pool refresh office office-8.img --at 2030-12-24T22:00:00Z",
        ],
    ),
    (
        "pool rollback",
        &["pool rollback office", "pool rollback office --wait"],
    ),
    ("pool finish", &["pool show office", "pool finish office"]),
];

const LAB: &[Verb] = &[
    (
        "demo",
        &["demo", "demo --no-guests --report /tmp/demo.html"],
    ),
    (
        "sim",
        &["sim --seconds 60", "sim --seed 42 --operations 500"],
    ),
    ("bench engine", &["bench engine", "bench engine --json"]),
    (
        "bench micro",
        &[
            "bench micro --path /mnt/ssd/x",
            "bench micro --path x --client vhost-user",
        ],
    ),
    (
        "bench burst",
        &[
            "bench burst",
            "bench burst --destage atomic --html burst.html",
        ],
    ),
    (
        "bench desktops",
        &["bench desktops --users 100,300 --pattern login"],
    ),
    (
        "bench policies",
        &["bench policies", "bench policies --json"],
    ),
    (
        "bench destage",
        &[
            "bench destage",
            "bench destage --destage in-place --rounds 5",
        ],
    ),
    (
        "bench neighbour",
        &["bench neighbour", "bench neighbour --origin-latency 5ms"],
    ),
    ("bench record", &["bench record", "bench record --rounds 5"]),
    (
        "bench restart",
        &["bench restart", "bench restart --cache 8G --dirty 1G"],
    ),
    (
        "bench replicas",
        &["bench replicas", "bench replicas --loads write,write-flush"],
    ),
    (
        "bench failover",
        &["bench failover", "bench failover --rounds 5"],
    ),
    (
        "bench migrate",
        &["bench migrate", "bench migrate --dirty 0,1GiB --cache 4GiB"],
    ),
    (
        "bench images",
        &["bench images", "bench images --parts requests,destage"],
    ),
    ("bench cow", &["bench cow all", "bench cow live --rounds 3"]),
    (
        "bench durability",
        &[
            "bench durability",
            "bench durability --part figure10 --trace web=web.trace --image desk.img",
        ],
    ),
    (
        "trace info",
        &["trace info disk.trace", "trace info hm_0.csv --format msr"],
    ),
    (
        "trace convert",
        &[
            "trace convert hm_0.csv disk.trace",
            "trace convert a.trace b --to fio",
        ],
    ),
    (
        "trace analyze",
        &[
            "trace analyze disk.trace",
            "trace analyze disk.trace --html disk.html",
            "trace analyze desk.trace --image desk=desk.img --propose rules.toml",
        ],
    ),
    (
        "trace record",
        &[
            "trace record desk-001 --output desk.trace --duration 10min",
            "trace record desk-001 desk-002 --output both.trace --limit 4G",
        ],
    ),
    (
        "trace replay",
        &[
            "trace replay disk.trace --volume scratch",
            "trace replay disk.trace --offline",
        ],
    ),
    ("trace agent", &["trace agent"]),
    (
        "trace synth",
        &["trace synth office office.trace --desktops 100"],
    ),
];

fn verbs() -> impl Iterator<Item = &'static Verb> {
    [PRODUCT, VOLUME, STORAGE, CLUSTER, POOLS, LAB]
        .into_iter()
        .flatten()
}

/// The whole command line, with the examples below the help of their verbs.
pub fn add(mut command: Command) -> Command {
    for (verb, lines) in verbs() {
        let words: Vec<&str> = verb.split(' ').collect();
        command = below(command, &words, lines);
    }
    command
}

fn below(command: Command, words: &[&str], lines: &[&str]) -> Command {
    match words.split_first() {
        None => command.after_help(text(lines)),
        Some((first, rest)) => command.mut_subcommand(first, |inner| below(inner, rest, lines)),
    }
}

fn text(lines: &[&str]) -> String {
    let lines = lines.iter().map(|line| format!("\n  tenuto {line}"));
    format!("{HEAD}{}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use crate::Cli;

    /// The verbs that are shown and have none below them.
    fn leaves(command: &clap::Command, path: &str, found: &mut Vec<(String, String)>) {
        let shown = || command.get_subcommands().filter(|it| !it.is_hide_set());
        for inner in shown().filter(|inner| inner.get_name() != "help") {
            leaves(inner, &format!("{path} {}", inner.get_name()), found);
        }
        if shown().next().is_none() {
            let help = command.get_after_help().map(ToString::to_string);
            found.push((path.trim().to_owned(), help.unwrap_or_default()));
        }
    }

    #[test]
    fn every_verb_has_examples_and_each_of_them_is_a_right_command_line() {
        let mut found = Vec::new();
        leaves(&crate::command(), "", &mut found);
        assert!(found.len() > 50, "{} verbs", found.len());
        for (verb, help) in found {
            let lines = help.strip_prefix(super::HEAD);
            let lines = lines.unwrap_or_else(|| panic!("{verb}: no examples"));
            let lines: Vec<&str> = lines.trim_start().lines().map(str::trim).collect();
            assert!((1..=4).contains(&lines.len()), "{verb}: {lines:?}");
            let own = lines.iter().any(|line| line.contains(&verb));
            assert!(own, "{verb}: no line has it");
            for line in lines {
                let parsed = Cli::read(line.split(' '));
                assert!(
                    parsed.is_ok(),
                    "{line}: {}",
                    parsed.expect_err("it is none")
                );
            }
        }
    }
}
