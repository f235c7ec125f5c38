//! Features, configuration and the cache mode.

use super::{ALL, Guest, QUEUES, beside_others, wait_for};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserConfigFlags;
use vring::config;

const WRITABLE: VhostUserConfigFlags = VhostUserConfigFlags::empty();

#[test]
fn what_is_offered_is_what_the_data_side_can_do() {
    let _guard = beside_others();
    let mut guest = Guest::connect();
    let offered = guest.front.get_features().unwrap();
    let ours = config::EVENT_IDX | config::INDIRECT_DESC | config::VERSION_1 | config::FLUSH;
    let ours = ours | config::CONFIG_WCE | config::MULTI_QUEUE | config::DISCARD;
    let transport = 1 << 26 | 1 << 30;
    assert_eq!(offered & (ours | transport), ours | transport);
    assert_eq!(guest.front.get_protocol_features().unwrap(), ALL);
    guest.negotiate();
    assert_eq!(guest.front.get_queue_num().unwrap(), u64::from(QUEUES));
    assert_eq!(guest.front.get_max_mem_slots().unwrap(), 256);
    guest.go();
}

#[test]
fn features_that_were_not_offered_are_refused() {
    let _guard = beside_others();
    let mut guest = Guest::connect();
    guest.negotiate();
    let offered = guest.front.get_features().unwrap();
    guest.front.set_features(offered | 1 << 34).unwrap_err();
    guest.front.set_features(offered).unwrap();
    guest.front.set_protocol_features(ALL).unwrap();
    assert_eq!(guest.connections.counters().messages_refused, 1);
    guest.go();
}

#[test]
fn the_configuration_is_read_and_its_cache_mode_written() {
    let _guard = beside_others();
    let mut guest = Guest::connect();
    guest.negotiate();
    assert_eq!(guest.fake.told().write_back, Some(true));
    let space = [0; 96];
    let (_, read) = guest.front.get_config(0, 96, WRITABLE, &space).unwrap();
    assert_eq!(read[..8], 2048u64.to_le_bytes());
    assert_eq!((read[32], &read[60..]), (1, &[0; 36][..]));
    guest.front.set_config(32, WRITABLE, &[0]).unwrap();
    assert_eq!(guest.fake.told().write_back, Some(false));
    let (_, read) = guest.front.get_config(32, 1, WRITABLE, &[0]).unwrap();
    assert_eq!(read, [0]);
    guest.front.set_config(32, WRITABLE, &[1]).unwrap();
    assert_eq!(guest.fake.told().write_back, Some(true));
    guest.go();
}

#[test]
fn what_a_guest_may_not_write_is_refused_and_its_front_end_stays() {
    let _guard = beside_others();
    let mut guest = Guest::connect();
    guest.negotiate();
    guest.front.set_config(0, WRITABLE, &[0; 8]).unwrap_err();
    guest.front.set_config(32, WRITABLE, &[2]).unwrap_err();
    // Nobody asks for an answer: the guest does not hear of it, and nothing else happens.
    guest
        .front
        .set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::empty());
    guest.front.set_config(33, WRITABLE, &[0]).unwrap();
    guest.front.get_features().unwrap();
    let connections = guest.connections.clone();
    wait_for(|| connections.counters().messages_refused == 3);
    guest.fake.change(|told| told.refuse_cache = true);
    guest.front.set_config(32, WRITABLE, &[0]).unwrap();
    let (_, read) = guest.front.get_config(32, 1, WRITABLE, &[0]).unwrap();
    assert_eq!(read, [1], "refused by the data side, so nothing changed");
    guest.go();
}

#[test]
fn a_guest_that_cannot_flush_has_no_write_back_cache() {
    let _guard = beside_others();
    let mut guest = Guest::connect();
    guest.negotiate();
    let offered = guest.front.get_features().unwrap() & !(1 << 26);
    guest.front.set_features(offered & !config::FLUSH).unwrap();
    assert_eq!(guest.fake.told().write_back, Some(false));
    guest.front.set_config(32, WRITABLE, &[1]).unwrap();
    assert_eq!(guest.fake.told().write_back, Some(false));
    guest.front.set_features(offered).unwrap();
    assert_eq!(guest.fake.told().write_back, Some(true));
    guest.go();
}

#[test]
fn features_of_rings_stay_while_one_is_started() {
    let _guard = beside_others();
    let guest = Guest::running();
    let offered = guest.front.get_features().unwrap() & !(1 << 26);
    let setup = guest.fake.told().running[&0].setup;
    assert!(setup.event_idx && setup.indirect);
    guest
        .front
        .set_features(offered & !config::EVENT_IDX)
        .unwrap_err();
    guest.front.set_features(offered).unwrap();
    guest.front.get_vring_base(0).unwrap();
    guest
        .front
        .set_features(offered & !config::EVENT_IDX)
        .unwrap();
    guest.go();
}

#[test]
fn a_reset_is_as_a_first_start_with_the_memory_kept() {
    let _guard = beside_others();
    let mut guest = Guest::running();
    guest.front.set_config(32, WRITABLE, &[0]).unwrap();
    guest.front.reset_device().unwrap();
    assert!(guest.fake.told().running.is_empty());
    let (_, read) = guest.front.get_config(32, 1, WRITABLE, &[0]).unwrap();
    assert_eq!(read, [1]);
    assert_eq!(
        guest.fake.told().write_back,
        Some(false),
        "nothing is agreed"
    );
    let kick = vmm_sys_util::eventfd::EventFd::new(0).unwrap();
    guest.front.set_vring_kick(0, &kick).unwrap_err();
    guest.negotiate();
    guest.start(0);
    assert!(guest.runs(0));
    guest.go();
}
