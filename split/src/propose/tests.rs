//! Each rule of a proposal by figures that are made for it.

use super::Figures;
use super::choose::{Chosen, Cost, choose, least};
use super::facts::Facts;
use super::judge::{Judgement, Verdict, judge};
use super::text::{Proposal, Requests, Total};
use crate::class::Class;
use crate::rules::{Family, Rules};

const BLOCK: u64 = 4096;
const HOME: &str = concat!("/home", "/a");

/// So many writes of a block, of which so many percent are rewritten and flushed.
fn figures(writes: u64, rewritten: u64, flushed: u64) -> Figures {
    Figures {
        writes,
        bytes: writes * BLOCK,
        looked_bytes: writes * BLOCK,
        rewritten: [0, 0, writes * BLOCK * rewritten / 100],
        flushed: writes * flushed / 100,
        ..Figures::default()
    }
}

fn facts(family: Family, directories: &[&str]) -> Facts {
    let mut facts = Facts::new(family);
    for path in directories {
        for (at, _) in path.match_indices(['/', '\\']).skip(1) {
            facts.directory(&path[..at]);
        }
        facts.directory(path);
    }
    facts
}

fn judged(facts: &Facts, figures: &[(&str, Figures)]) -> Judgement {
    let own: Vec<(String, Figures)> = figures.iter().map(|it| (facts.key(it.0), it.1)).collect();
    judge(facts, own.iter().map(|it| (&*it.0, it.1)), 10)
}

/// The lines: a path and its class, and what it keeps.
fn lines(judgement: &Judgement) -> Vec<String> {
    let candidates = judgement.candidates.iter();
    let lines = candidates.map(|it| {
        let keeps = it.keeps.iter().map(|it| format!(" without {}", it.0));
        format!(
            "{} {}{}",
            it.key,
            it.class.name(),
            keeps.collect::<String>()
        )
    });
    lines.collect()
}

fn why(judgement: &Judgement, key: &str) -> String {
    let found = judgement.directories.iter().find(|it| it.key == key);
    match &found.expect("it was judged").verdict {
        Verdict::Relaxed(_, why) | Verdict::Stays(why) => why.clone(),
        Verdict::AsksForDurability => "asks".to_owned(),
    }
}

/// Fails when: a name that no table knows is lost, or a known one that a start reads again.
#[test]
fn only_known_names_that_no_start_reads_are_never_written_back() {
    let facts = facts(
        Family::Linux,
        &["/tmp/x", "/var/tmp", "/scratch", "/home/a/.cache"],
    );
    let started = Figures {
        has_start: true,
        ..figures(100, 0, 0)
    };
    let read = Figures {
        reads_after_start: 1,
        ..started
    };
    let found = judged(
        &facts,
        &[
            ("/tmp/x", started),
            ("/var/tmp", read),
            ("/scratch", started),
            ("/home/a/.cache", figures(100, 0, 0)),
        ],
    );
    assert_eq!(lines(&found), ["/home/a/.cache never", "/tmp never"]);
    assert!(why(&found, "/home/a/.cache").contains("no start of the guest in the trace"));
    assert!(why(&found, "/tmp").contains("no read after a start"));
    assert!(why(&found, "/var/tmp").starts_with("1 reads after a start"));
    let rewritten = Figures {
        reads_after_start: 1,
        ..figures(100, 60, 0)
    };
    let found = judged(&facts, &[("/var/tmp", rewritten)]);
    assert_eq!(lines(&found), ["/var/tmp write-back"]);
}

/// Fails when: half is taken for more than half.
#[test]
fn what_is_rewritten_by_more_than_half_is_written_back() {
    let facts = facts(Family::Linux, &["/srv/a", "/srv/b"]);
    let found = judged(
        &facts,
        &[
            ("/srv/a", figures(100, 51, 0)),
            ("/srv/b", figures(100, 50, 0)),
        ],
    );
    assert_eq!(lines(&found), ["/srv/a write-back"]);
}

/// Fails when: one file of no package is overlooked, or a table counts where lists are there.
#[test]
fn packages_say_what_can_be_made_again_and_else_the_table_does() {
    let mut facts = facts(Family::Linux, &["/opt/p", "/opt/q", "/usr/lib/x", "/etc/x"]);
    let owned = |writes, of| Figures {
        owned: of,
        ..figures(writes, 0, 0)
    };
    let all = [
        ("/opt/p", owned(100, 100)),
        ("/opt/q", owned(100, 99)),
        ("/usr/lib/x", owned(100, 100)),
        ("/etc/x", owned(100, 100)),
    ];
    assert_eq!(lines(&judged(&facts, &all)), ["/opt write-back"]);
    facts.has_packages = true;
    assert_eq!(lines(&judged(&facts, &all)), ["/opt/p write-back"]);
}

/// Fails when: a directory that flushes goes with the one above it, or a fifth is too much.
#[test]
fn what_asks_for_durability_is_never_late() {
    let facts = facts(
        Family::Linux,
        &["/srv/db", "/srv/fifth", "/srv/app/wal", "/tmp"],
    );
    let found = judged(
        &facts,
        &[
            ("/srv/db", figures(100, 90, 21)),
            ("/srv/fifth", figures(100, 90, 20)),
            ("/srv/app", figures(100, 90, 0)),
            // Fewer than are looked at, and yet never late.
            ("/srv/app/wal", figures(5, 0, 100)),
            ("/tmp", figures(100, 90, 30)),
        ],
    );
    assert_eq!(
        lines(&found),
        [
            "/srv/app write-back without /srv/app/wal",
            "/srv/fifth write-back"
        ]
    );
    assert_eq!(why(&found, "/tmp"), "asks");
}

/// Fails when: users' own data is relaxed for its figures, or a cache is taken for it.
#[test]
fn users_own_data_is_never_late() {
    let mut facts = facts(
        Family::Linux,
        &[
            "/home/a/Documents",
            "/home/a/.config/x",
            "/home/a/.cache/thunderbird",
            "/home/a/.local/share/keyrings",
            "/home/a/build",
            "/srv/mail/out",
        ],
    );
    facts.file("/srv/mail/a.PST");
    let often = figures(100, 90, 0);
    let found = judged(
        &facts,
        &[
            ("/home/a/Documents", often),
            ("/home/a/.config/x", often),
            ("/home/a/.cache/thunderbird", often),
            ("/home/a/.local/share", often),
            ("/home/a/build", often),
            (HOME, often),
            ("/srv/mail", often),
            ("/srv/mail/out", often),
        ],
    );
    assert_eq!(
        lines(&found),
        [
            "/home/a/.cache never",
            "/home/a/.local/share write-back without /home/a/.local/share/keyrings",
            "/home/a/build write-back",
            "/srv/mail/out write-back",
        ]
    );
    assert_eq!(why(&found, "/home/a/Documents"), "users' own data");
}

/// Fails when: a file with a second name elsewhere moves without it, or one with both inside stays.
#[test]
fn a_directory_goes_with_all_names_of_its_files_or_not_at_all() {
    let mut facts = facts(Family::Linux, &["/srv/a", "/srv/b", "/srv/c/wal", "/etc"]);
    facts.linked(["/srv/a/1", "/etc/1"].into_iter());
    facts.linked(["/srv/b/1", "/srv/b/2"].into_iter());
    facts.linked(["/srv/c/wal/1", "/srv/c/2"].into_iter());
    let found = judged(
        &facts,
        &[
            ("/srv/a", figures(100, 90, 0)),
            ("/srv/b", figures(100, 90, 0)),
            ("/srv/c", figures(100, 90, 0)),
            ("/srv/c/wal", figures(5, 90, 100)),
        ],
    );
    assert_eq!(lines(&found), ["/srv/b write-back"]);
    let names = "/srv/a/1 and /etc/1 are one file with two names";
    assert_eq!(why(&found, "/srv/a"), names);
    assert!(why(&found, "/srv/c").starts_with("/srv/c/wal in it has to stay, and /srv/c/wal/1"));
}

/// Fails when: a path goes with a child that counts and must stay, or two go where one would do.
#[test]
fn paths_are_few_and_take_no_child_along_that_must_stay() {
    let facts = facts(
        Family::Linux,
        &["/data/a/x", "/data/a/y", "/data/b/x", "/data/b/y"],
    );
    let (often, once) = (figures(100, 90, 0), figures(100, 0, 0));
    let found = judged(
        &facts,
        &[
            ("/data/a/x", often),
            ("/data/a/y", often),
            ("/data/b/x", figures(900, 90, 0)),
            ("/data/b/y", once),
            ("/data/gone", often),
        ],
    );
    assert_eq!(
        lines(&found),
        ["/data/a write-back", "/data/b/x write-back"]
    );
    assert_eq!(
        why(&found, "/data/gone"),
        "is no directory of the image now"
    );
    let tail = figures(9, 90, 0);
    let found = judged(&facts, &[("/data/a/x", often), ("/data/b/y", tail)]);
    assert_eq!(
        found.directories.len(),
        4,
        "those of nine writes are the tail"
    );
    // Files of its own that are not rewritten hold a directory back, and others do not.
    let children = [("/data/a/x", often), ("/data/a/y", often)];
    let with = |own| judged(&facts, &[&children[..], &[("/data/a", own)]].concat());
    assert_eq!(lines(&with(often)), ["/data/a write-back"]);
    let apart = ["/data/a/x write-back", "/data/a/y write-back"];
    assert_eq!(lines(&with(figures(50, 0, 0))), apart);
    assert_eq!(found.candidate("/data/a/x/f"), Some(0));
    assert_eq!(found.candidate("/data/a/y/f"), None);
}

/// Fails when: NTFS gets an exception inside of what moves, or deep names of the table are unseen.
#[test]
fn on_ntfs_nothing_stays_inside_of_what_moves() {
    let cache = "\\Users\\Ann\\AppData\\Local\\Microsoft\\Windows\\INetCache";
    let mut facts = facts(
        Family::Windows,
        &[
            cache,
            "\\Users\\Ann\\AppData\\Local\\Microsoft\\Credentials",
            "\\Users\\Ann\\AppData\\Local\\App",
            "\\Windows\\System32\\x",
            "\\Windows\\Logs",
        ],
    );
    facts.file("\\pagefile.sys");
    let home = facts.home("C:\\users\\ann\\appdata\\local\\microsoft\\windows\\inetcache\\IE\\1");
    assert_eq!(home, facts.key(cache));
    assert_eq!(facts.home("\\a\\b\\c\\d\\e\\f\\g"), "/a/b/c/d/e");
    assert_eq!(facts.home("\\pagefile.sys"), "/pagefile.sys");
    let often = figures(100, 90, 0);
    let found = judged(
        &facts,
        &[
            (cache, often),
            ("\\Users\\Ann\\AppData\\Local\\App", often),
            ("\\Windows\\System32\\x", often),
            ("\\Windows\\Logs", often),
            ("\\pagefile.sys", often),
        ],
    );
    assert_eq!(
        lines(&found),
        [
            "/pagefile.sys never",
            "/users/ann/appdata/local/app write-back",
            "/users/ann/appdata/local/microsoft/windows/inetcache never",
            "/windows/logs write-back",
        ]
    );
    let local = why(&found, "/users/ann/appdata/local");
    assert!(
        local.ends_with("(users' own data), and nothing can on NTFS"),
        "{local}"
    );
}

/// Fails when: what may be lost goes with the directory around it, or counts for both.
#[test]
fn a_temporary_directory_in_one_that_is_written_back_has_its_own_line() {
    let local = "\\Users\\Bob\\AppData\\Local";
    let below = ["Temp", "A", "B"].map(|it| format!("{local}\\{it}"));
    let facts = facts(Family::Windows, &below.each_ref().map(|it| &**it));
    let of = |at: usize, writes| (&*below[at], figures(writes, 0, 0));
    let found = judged(&facts, &[of(0, 100), of(1, 30), of(2, 40)]);
    let candidates = found.candidates.iter();
    let found: Vec<(&str, Class, u64)> = candidates
        .map(|it| (&*it.key, it.class, it.figures.writes))
        .collect();
    let local = facts.key(local);
    let temp = facts.key(&below[0]);
    let expected = [(&*local, Class::WriteBack, 70), (&*temp, Class::Never, 100)];
    assert_eq!(found, expected);
}

/// Fails when: the best is not first, or one that saves too little has a line.
#[test]
fn those_that_save_most_come_first_and_the_tail_is_cut() {
    let facts = facts(Family::Linux, &["/srv/a", "/srv/b", "/srv/c", "/srv/d"]);
    let often = figures(100, 90, 0);
    let all = [
        ("/srv/a", often),
        ("/srv/b", often),
        ("/srv/c", often),
        ("/srv/d", often),
    ];
    let judgement = judged(&facts, &all);
    let cost = |before, after| Cost { before, after };
    let costs = [cost(100, 96), cost(100, 50), cost(100, 95), cost(100, 120)];
    let chosen = choose(&judgement, &costs, least(400, 0.0125));
    assert_eq!(chosen.lines, [1, 2]);
    assert_eq!(chosen.left_out, [0, 3]);
    assert_eq!(choose(&judgement, &costs, least(400, 0.0)).lines, [1, 2, 0]);
    assert_eq!([least(401, 0.01), least(0, 0.5)], [5, 1]);
}

/// Fails when: a line has other figures than its directory, or a name of an image gets out of its
/// comment or its string.
#[test]
fn a_table_has_its_figures_and_is_one_that_a_split_reads() {
    let odd = "/srv/a \"b\" 'c'\\";
    let mut facts = facts(Family::Linux, &[odd, "/srv/a \"b\" 'c'\\/wal", "/tmp"]);
    facts.directory("/srv/x\n[[move]]\ny");
    let judgement = judged(
        &facts,
        &[
            (odd, figures(600, 75, 0)),
            ("/srv/a \"b\" 'c'\\/wal", figures(14, 0, 100)),
            ("/tmp", figures(196, 0, 5)),
            ("/srv/x\n[[move]]\ny", figures(200, 90, 0)),
            ("/swapfile", figures(100, 0, 0)),
        ],
    );
    let costs: Vec<Cost> = judgement
        .candidates
        .iter()
        .map(|it| Cost {
            before: it.figures.writes,
            after: 7,
        })
        .collect();
    let chosen: Chosen = choose(&judgement, &costs, 1);
    let requests = |writes| Requests {
        writes,
        ..Requests::default()
    };
    let total = |class, before, after| Total {
        class,
        before: requests(before),
        after: requests(after),
    };
    let proposal = Proposal {
        facts: &facts,
        judgement: &judgement,
        costs: &costs,
        chosen: &chosen,
        period: "2h",
        min_share: 0.01,
        seconds: 60.0,
        all: figures(1100, 0, 0),
        nowhere: figures(1, 0, 0),
        starts: 0,
        totals: &[
            total(None, 200, 200),
            total(Some(Class::WriteBack), 600, 100),
        ],
    };
    assert!(proposal.is_table());
    let table = proposal.table();
    let rules = Rules::parse(&table, "r.toml").unwrap_or_else(|error| panic!("{error}: {table}"));
    let moves: Vec<(&str, Class)> = rules
        .moves
        .iter()
        .map(|it| (&*it.path.text, it.class))
        .collect();
    assert_eq!(moves, [(odd, Class::WriteBack), ("/tmp", Class::Never)]);
    assert_eq!(rules.keeps[0].text, "/srv/a \"b\" 'c'\\/wal");
    assert_eq!(rules.disk(Class::WriteBack).destage_after, "2h");
    assert_eq!(rules.page_file.map(|it| it.class), Some(Class::Never));
    let asking = format!("50 ms):\n#   {odd}/wal: 1.3 % of the writes, 100.0 % flushed\n");
    assert!(table.contains(&asking), "{table}");
    for words in [
        "# 54.5 % of the writes, 54.5 % of the bytes; flushed 0.0 %; gone 0.0 %.\n\
         # Rewritten within 10s 0.0 %, 10m 0.0 %, 2h 75.0 %; 600 requests at the storage before, 7 \
         after.\n",
        "#   write-back           600 ->       100\n",
        "#   all                  800 ->       300, 62.5 % less\n",
        "#   /srv/x?[[move]]?y: 18.2 % of the writes; has a name that a table of rules cannot \
         say\n",
        "# Of the writes 0.1 % go to no file",
    ] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let document = proposal.json();
    assert_eq!(document["moves"][0]["origin_requests_before"], 600);
    assert_eq!(document["origin_requests_after"], 300);
}
