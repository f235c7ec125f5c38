//! What is shown of copies on other hosts, from made-up states of them.

use super::*;
use crate::admin::copies::changes;
use crate::unit::copies::{LearnerShown, MemberShown, Replication};

fn member(host: &str, state: &'static str, durable: u64) -> MemberShown {
    MemberShown {
        host: host.into(),
        state,
        durable,
    }
}

fn full() -> Shown {
    let members = vec![
        member("host-a", "here", 9),
        member("host-b", "streaming", 9),
    ];
    owner(Replication {
        wanted: 1,
        real: 1,
        state: "full",
        members,
        learner: None,
        at_origin: false,
        reason: None,
    })
}

fn degraded() -> Shown {
    let members = vec![member("host-a", "here", 9), member("host-b", "lost", 7)];
    owner(Replication {
        wanted: 1,
        real: 0,
        state: "degraded",
        members,
        learner: Some(LearnerShown {
            host: "host-c".into(),
            percent: 40,
        }),
        at_origin: false,
        reason: Some("host-b has not answered for 1 s".into()),
    })
}

fn waiting() -> Shown {
    let members = vec![
        member("host-a", "here", 9),
        member("host-b", "catching-up", 7),
    ];
    owner(Replication {
        wanted: 1,
        state: "waiting",
        members,
        reason: Some("neither host-b nor the vault answers".into()),
        ..Replication::default()
    })
}

fn owner(replication: Replication) -> Shown {
    Shown {
        owner: Some("host-a".into()),
        here: true,
        state: "owner",
        replication: Some(replication),
        ..Shown::default()
    }
}

/// A dirty volume with these copies.
fn shown(unit: Shown) -> House {
    let house = House::new();
    house.add("a", &[]).expect("added");
    house.fake.change("a", |volume| {
        volume.state = State::Dirty;
        volume.dirty_bytes = 8192;
        volume.oldest_dirty_ns = Some(5_000_000_000);
        (volume.acked_serial, volume.durable_serial) = (Serial(9), Serial(9));
    });
    house.fake.state().units.insert("a".into(), unit);
    house
}

fn document(house: &House) -> Json {
    let view = house.admin.view().expect("a view");
    json::volume(&view, view.volume("a").expect("known"))
}

fn troubles(house: &House) -> Vec<String> {
    json::troubles(&house.admin.view().expect("a view"))
}

#[test]
fn a_volume_with_all_its_copies_loses_nothing_flushed_and_asks_for_nothing() {
    let house = shown(full());
    let volume = document(&house);
    assert_eq!(volume["state"], "dirty");
    let wanted = json!({
        "wanted": 1, "real": 1, "state": "full",
        "members": [
            { "host": "host-a", "state": "here", "durable_serial": 9 },
            { "host": "host-b", "state": "streaming", "durable_serial": 9 },
        ],
        "learner": null, "at_origin": false, "reason": null,
    });
    assert_eq!(volume["replication"], wanted);
    assert_eq!(
        volume["promise"],
        "if this host dies now, also for good with its SSD, nothing is lost: of what is not at \
         the origin host-b has a copy"
    );
    assert!(troubles(&house).is_empty());
    // What the other host has in RAM only is not promised.
    house
        .fake
        .change("a", |volume| volume.acked_serial = Serial(10));
    let promise = document(&house)["promise"].clone();
    let promise = promise.as_str().expect("a text");
    assert!(
        promise.contains("only writes not yet flushed are lost"),
        "{promise}"
    );
    let page = metrics::text(&house.admin.view().expect("a view"), &house.admin.history);
    assert!(page.contains("tenuto_volume_replicas_wanted{volume=\"a\"} 1\n"));
    assert!(page.contains("tenuto_volume_replicas_real{volume=\"a\"} 1\n"));
}

/// Fails when: a volume is said to be on this host only while another one has all of it.
#[test]
fn with_one_of_two_copies_it_is_said_which_host_has_it() {
    let house = shown(owner(Replication {
        wanted: 2,
        real: 1,
        state: "degraded",
        members: vec![
            member("host-a", "here", 9),
            member("host-b", "streaming", 9),
        ],
        reason: Some("no other host answers".into()),
        ..Replication::default()
    }));
    let volume = document(&house);
    assert_eq!(volume["state"], "degraded");
    let promise = volume["promise"].as_str().expect("a text");
    let wanted = "nothing is lost: of what is not at the origin host-b has a copy";
    assert!(promise.ends_with(wanted), "{promise}");
}

#[test]
fn a_volume_with_too_few_copies_is_degraded_and_says_what_is_on_this_host_only() {
    let house = shown(degraded());
    let volume = document(&house);
    assert_eq!(volume["state"], "degraded");
    let reason = "host-b has not answered for 1 s; host-c gets a copy, 40 % of it is there";
    assert_eq!(volume["effective_reason"], reason);
    assert_eq!(
        volume["replication"]["learner"],
        json!({ "host": "host-c", "percent": 40 })
    );
    assert_eq!(
        volume["promise"],
        "if this host dies now and comes back, nothing is lost; if its SSD is gone too, 8 KiB of \
         up to 5 s ago are lost (no other host has all of it) and the origin is an earlier \
         consistent state"
    );
    assert_eq!(
        troubles(&house),
        [format!("volume a is degraded: {reason}")]
    );
    let mut through = degraded();
    through.replication.as_mut().expect("copies").at_origin = true;
    house.fake.state().units.insert("a".into(), through);
    let volume = document(&house);
    assert_eq!(volume["effective_policy"], "write-through");
    assert_eq!(
        volume["promise"],
        "if this host dies now, nothing that a guest flushed is lost: it is on the origin"
    );
    // A host that hears of each write, and lacks earlier ones, is promised nothing of.
    let mut streams = degraded();
    let copies = streams.replication.as_mut().expect("copies");
    copies.members[1].state = "streaming";
    house.fake.state().units.insert("a".into(), streams);
    let promise = document(&house)["promise"].clone();
    assert!(
        promise
            .as_str()
            .expect("a text")
            .contains("no other host has all of it")
    );
    house.fake.state().units.insert("a".into(), degraded());
    // A clean one is degraded as well: the next flush is on one host only.
    house.fake.change("a", |volume| {
        (volume.state, volume.dirty_bytes) = (State::Clean, 0)
    });
    assert_eq!(document(&house)["state"], "degraded");
    // What is worse comes first.
    house
        .fake
        .change("a", |volume| volume.state = State::Stalled);
    assert_eq!(document(&house)["state"], "stalled");
    let page = metrics::text(&house.admin.view().expect("a view"), &house.admin.history);
    assert!(page.contains("tenuto_volume_replicas_real{volume=\"a\"} 0\n"));
}

#[test]
fn a_volume_whose_flushes_wait_says_so() {
    let house = shown(waiting());
    let volume = document(&house);
    assert_eq!(volume["state"], "degraded");
    let promise = volume["promise"].as_str().expect("a text");
    assert!(promise.contains("flushes are not answered"), "{promise}");
    let wanted = "volume a is degraded, and its flushes wait: neither host-b nor the vault answers";
    assert_eq!(troubles(&house), [wanted]);
}

#[test]
fn a_volume_without_copies_shows_none() {
    let house = shown(Shown::default());
    let wanted = json!({
        "wanted": 0, "real": 0, "state": null, "members": [], "learner": null,
        "at_origin": false, "reason": null,
    });
    let volume = document(&house);
    assert_eq!(volume["replication"], wanted);
    assert_eq!(
        (&volume["replicas"], &volume["state"]),
        (&json!(0), &json!("dirty"))
    );
    let page = metrics::text(&house.admin.view().expect("a view"), &house.admin.history);
    assert!(!page.contains("replicas_real{"), "{page}");
}

#[test]
fn copies_kept_for_others_are_shown_with_their_owner() {
    let house = shown(degraded());
    house.fake.state().copies.push(CopyShown {
        name: "b".into(),
        owner: "host-b".into(),
        state: "member",
        end: 12,
        bytes: 4096,
    });
    let look = house.admin.look().expect("a look");
    let status = json::status(&house.admin.view().expect("a view"));
    let wanted = json!([{
        "name": "b", "owner": "host-b", "state": "member", "end_serial": 12, "bytes": 4096,
    }]);
    assert_eq!(status["copies"], wanted);
    let [kept, other] = ["host-b", "host-c"].map(|host| {
        let kept = crate::admin::copies::kept_for(host, &look.copies);
        (kept, crate::admin::copies::held_by(host, &look.units))
    });
    // A copy that is lost is none, and one that is being made is one.
    assert_eq!((kept, other), ((1, 0), (0, 1)));
}

#[test]
fn each_turn_of_the_copies_is_one_event() {
    let words = |before: &Shown, after: &Shown| -> Vec<String> {
        let changes = changes(before, after).into_iter();
        let line =
            |it: crate::admin::copies::Change| format!("{} {}", it.severity.name(), it.words);
        changes.map(line).collect()
    };
    let none = Shown::default();
    let lost = "warning is degraded: host-b has not answered for 1 s; host-c gets a copy, 40 % of \
                it is there";
    assert_eq!(words(&full(), &degraded()), [lost]);
    assert_eq!(words(&none, &degraded()), [lost], "at the first look");
    let waits = "error is degraded, and its flushes wait: neither host-b nor the vault answers";
    assert_eq!(words(&full(), &waiting()), [waits]);
    assert_eq!(words(&waiting(), &degraded()), [lost]);
    let again = "info its copies are complete again: host-b has one";
    assert_eq!(words(&degraded(), &full()), [again]);
    // What only goes on is no news.
    let mut more = degraded();
    let copies = more.replication.as_mut().expect("copies");
    copies.members[0].durable = 12;
    copies.learner = None;
    for (before, after) in [(&degraded(), &more), (&none, &full()), (&degraded(), &none)] {
        assert_eq!(words(before, after), [""; 0]);
    }
}

#[test]
fn a_volume_that_is_taken_over_is_told_of_once() {
    let away = Shown {
        owner: Some("host-a".into()),
        state: "waiting-for-proof",
        ..Shown::default()
    };
    let here = Shown {
        owner: Some("host-b".into()),
        here: true,
        state: "owner",
        proof: Some("fenced by its program"),
        ..Shown::default()
    };
    let told = changes(&away, &here);
    let wanted = "was taken over from host-a, which can write no more: fenced by its program";
    assert_eq!((told.len(), &told[0].words[..]), (1, wanted));
    assert!(changes(&here, &here).is_empty());
    // What was given is not taken.
    let given = Shown {
        proof: None,
        ..here
    };
    assert!(changes(&away, &given).is_empty());
}

#[test]
fn a_volume_that_is_taken_over_before_there_is_proof_is_told_of_twice() {
    let unit = |owner: &str, here, drainer: &str, state, proof| Shown {
        owner: Some(owner.into()),
        drainer: Some(drainer.into()),
        reason: (state == "waiting-for-proof").then(|| "host-a may still write it".into()),
        here,
        state,
        proof,
        ..Shown::default()
    };
    let away = unit("host-a", false, "host-a", "away", None);
    let here = unit("host-b", true, "host-a", "waiting-for-proof", None);
    let proved = unit(
        "host-b",
        true,
        "host-b",
        "owner",
        Some("released by its host"),
    );
    let words = |before, after| {
        let told = changes(before, after).into_iter();
        told.map(|change| change.words).collect::<Vec<String>>()
    };
    let wanted = "was taken over from host-a; nothing is brought to its image, which host-a may \
                  still write";
    assert_eq!(words(&away, &here), [wanted]);
    let wanted = "host-a writes its image no more: released by its host";
    assert_eq!(words(&here, &proved), [wanted]);
    for unit in [&away, &here, &proved] {
        assert!(changes(unit, unit).is_empty());
    }
    // It says so when it is told to destage, also where nothing waits for that.
    let house = shown(here);
    let error = house.admin.check_destage("a").expect_err("no right");
    assert_eq!(error.message, "volume a: host-a may still write it");
    house.fake.state().units.insert("a".into(), proved);
    house.admin.check_destage("a").expect("it has the right");
    let lines = crate::admin::json::troubles(&house.admin.view().expect("a view"));
    assert!(lines.is_empty(), "{lines:?}");
}

#[test]
fn a_look_in_the_middle_of_a_takeover_hides_nothing() {
    let unit = |owner: &str, state, here, proof| Shown {
        owner: Some(owner.into()),
        state,
        here,
        proof,
        ..Shown::default()
    };
    let house = shown(unit("host-a", "waiting-for-proof", false, None));
    let mut changes = crate::admin::changes::Changes::default();
    let mut told = |unit: Shown| {
        house.fake.state().units.insert("a".into(), unit);
        let mut words = Vec::new();
        let view = house.admin.view().expect("a view");
        changes.look(&view, &mut |notice| words.push(notice.message));
        words
    };
    told(unit("host-a", "waiting-for-proof", false, None));
    let proof = Some("fenced by its program");
    assert!(told(unit("host-b", "taking", false, proof)).is_empty());
    let words = told(unit("host-b", "owner", true, proof));
    assert_eq!(words.len(), 1, "{words:?}");
    assert!(
        words[0].starts_with("was taken over from host-a"),
        "{words:?}"
    );
    assert!(told(unit("host-b", "owner", true, proof)).is_empty());
}

#[test]
fn the_number_of_copies_changes_while_a_volume_runs_where_there_can_be_some() {
    let house = House::new();
    house.add("a", &[]).expect("added");
    let set = |number: &str| {
        let values = [("replicas".to_string(), Value::Text(number.into()))];
        house.admin.set("a", &values).map(drop)
    };
    let error = set("1").expect_err("no cluster");
    assert_eq!(error.kind, Kind::Refused);
    assert!(error.message.contains("in no cluster"), "{}", error.message);
    let error = set("8").expect_err("seven at most");
    assert!(error.message.contains("from 0 to 7"), "{}", error.message);
    set("0").expect("as it was");
    let cluster = "[cluster]\nname = \"c\"\nlisten = \"10.0.0.1\"\n";
    let path = house.directory.path().join("t.toml");
    let text = std::fs::read_to_string(&path).expect("read") + cluster;
    std::fs::write(&path, text).expect("written");
    let config = Config::load(&path).expect("right");
    let fake = house.fake.clone();
    let volumes = state::load(&config).expect("volumes");
    let admin = Admin::new(config, volumes, Box::new(fake));
    let values = [("replicas".to_string(), Value::Text("1".into()))];
    admin.set("a", &values).map(drop).expect("changed");
    let view = admin.view().expect("a view");
    assert_eq!(
        json::volume(&view, view.volume("a").expect("known"))["replicas"],
        1
    );
    let values = [("policy".to_string(), Value::Text("uncached".into()))];
    let error = admin
        .set("a", &values)
        .map(drop)
        .expect_err("copies of nothing");
    assert!(error.message.contains("replicas = 0"), "{}", error.message);
}
