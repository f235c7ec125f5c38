//! Two daemons' links in one process.

use super::tokens::Token;
use super::{LinkEvent, Links, Settings, join};
use crate::config::Config;
use crate::config::cluster::Cluster;
use crate::error::Kind;
use crate::vault::Vault;
use engine::types::Uuid;
use node::peers::PeerTimeout;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tempfile::TempDir;

/// How long something takes that is sure to come.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

const AGAIN: Duration = Duration::from_millis(200);

pub(super) struct Place {
    pub config: Config,
    pub address: SocketAddr,
    _directory: TempDir,
}

impl Place {
    pub fn new(name: &str) -> Place {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tenuto.toml");
        let state = directory.path().join("state");
        let text = format!(
            "[host]\nname = \"{name}\"\nstate-dir = \"{}\"\n",
            state.display()
        );
        std::fs::write(&path, text).expect("written");
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        Place {
            config: Config::load(&path).expect("right"),
            address: free.local_addr().expect("an address"),
            _directory: directory,
        }
    }

    pub fn start(&self, boot: u8) -> (Links, Receiver<LinkEvent>) {
        let settings = Settings {
            state_dir: self.config.host.state_dir.clone(),
            host_name: self.config.host.name.clone(),
            listen: vec![self.address],
            domain: String::new(),
            peer_timeout: PeerTimeout::default(),
            vault: Vault::Beside.show(),
            boot: Uuid([boot; 16]),
            cache: Uuid([boot + 100; 16]),
        };
        let (told, events) = channel();
        // The test may have ended before its links.
        let on = move |event| drop(told.send(event));
        (
            Links::start(settings, Box::new(on)).expect("started"),
            events,
        )
    }
}

pub(super) fn next(events: &Receiver<LinkEvent>) -> LinkEvent {
    events.recv_timeout(PATIENCE).expect("it comes")
}

/// Sends until it is heard, as a second link that takes the place of the first one loses what is
/// under way; says what came before it.
fn heard(from: &Links, to: Uuid, events: &Receiver<LinkEvent>) -> (Vec<LinkEvent>, Vec<u8>) {
    let mut before = Vec::new();
    for _ in 0..PATIENCE.as_millis() / AGAIN.as_millis() {
        from.send(to, b"hello".to_vec());
        match events.recv_timeout(AGAIN) {
            Ok(LinkEvent::Unit { body, .. }) => return (before, body),
            Ok(other) => before.push(other),
            Err(_) => {}
        }
    }
    panic!("nothing was heard; before it came {before:?}");
}

#[test]
fn messages_pass_between_two_hosts_after_the_link_is_told_and_not_before() {
    let (a, b) = (Place::new("a"), Place::new("b"));
    let cluster = Cluster {
        name: "c1".into(),
        listen: vec![a.address],
        ..Cluster::default()
    };
    let id_a = join::init(&a.config, &cluster).expect("made");
    let again = join::init(&a.config, &cluster).expect_err("once");
    assert_eq!(again.kind, Kind::Refused);
    let (links_a, events_a) = a.start(1);
    let (token, _) = links_a.token().expect("a token");
    let token = Token::parse(&token).expect("a token");
    let joined = join::join(&b.config, &token, vec![b.address], "rack".into()).expect("joined");
    let id_b = joined.host;
    assert_eq!(joined.members, [links_a.own()]);
    assert_eq!(links_a.hosts().len(), 1);
    assert!(!links_a.send(id_b, b"early".to_vec()), "there is no link");

    let (links_b, events_b) = b.start(2);
    let up = LinkEvent::Up {
        host: id_b,
        boot: Uuid([2; 16]),
    };
    while next(&events_a) != up {}
    let (before, body) = heard(&links_a, id_b, &events_b);
    assert_eq!(body, b"hello");
    let up = LinkEvent::Up {
        host: id_a,
        boot: Uuid([1; 16]),
    };
    assert_eq!(before.last(), Some(&up));
    assert_eq!(links_b.boot_of(id_a), Some(Uuid([1; 16])));
    assert_eq!(links_b.peers()[0].member.name, "a");

    links_a.stop();
    while next(&events_b) != (LinkEvent::Down { host: id_a }) {}
    assert!(!links_b.send(id_a, b"late".to_vec()));
    assert!(!links_a.send(id_b, b"late".to_vec()));
    let (links_a, _events) = a.start(3);
    let up = LinkEvent::Up {
        host: id_a,
        boot: Uuid([3; 16]),
    };
    while next(&events_b) != up {}

    links_b.set_owned(Box::new(|| vec!["desk-001".into()]));
    let refused = links_b.leave().expect_err("it owns a volume");
    assert_eq!(refused.kind, Kind::Refused);
    assert_eq!(refused.object.as_deref(), Some("desk-001"));
    assert_eq!(links_a.hosts().len(), 1);
}
