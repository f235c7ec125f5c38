//! What is known of the cache of a guest that comes, comes back, or was elsewhere meanwhile.

use super::{BYTES, Fake, Guest, beside_others, memory_file};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserConfigFlags;
use vring::config;

const NONE: VhostUserConfigFlags = VhostUserConfigFlags::empty();

/// A front end of which this was kept, and nothing but that.
fn comes(kept: Option<bool>) -> Guest {
    let fake = Fake::default();
    fake.change(|told| told.kept = kept);
    let connections = super::Connections::new(8);
    let mut guest = Guest::connect_as(&connections, memory_file(BYTES), fake);
    guest.negotiate();
    guest.share();
    guest
}

fn set_cache(guest: &mut Guest, mode: u8) -> bool {
    guest.front.set_config(32, NONE, &[mode]).is_ok()
}

fn config(guest: &mut Guest) -> u8 {
    guest.front.get_config(32, 1, NONE, &[0]).unwrap().1[0]
}

fn write_back(guest: &Guest) -> Option<bool> {
    guest.fake.told().write_back
}

fn kept(guest: &Guest) -> Option<bool> {
    guest.fake.told().kept
}

#[test]
fn a_cache_that_was_switched_off_stays_off_for_a_front_end_that_comes_back() {
    let _guard = beside_others();
    let mut guest = comes(None);
    guest.start_at(0, 0);
    assert_eq!((write_back(&guest), kept(&guest)), (Some(true), Some(true)));
    assert!(set_cache(&mut guest, 0));
    assert_eq!(
        (write_back(&guest), kept(&guest)),
        (Some(false), Some(false))
    );
    let known = kept(&guest);
    guest.go();
    // It says nothing of its cache, in the middle of its work or at the start of its guest.
    for base in [7, 0] {
        let mut guest = comes(known);
        guest.start_at(0, base);
        assert_eq!((write_back(&guest), config(&mut guest)), (Some(false), 0));
        guest.go();
    }
    // One that asks first, for a guest that begins, has been told.
    let mut guest = comes(known);
    assert_eq!(config(&mut guest), 1);
    guest.start_at(0, 0);
    assert_eq!((write_back(&guest), kept(&guest)), (Some(true), Some(true)));
    guest.go();
    // And whoever has it on keeps it.
    let mut guest = comes(Some(true));
    guest.start_at(0, 7);
    assert_eq!((write_back(&guest), kept(&guest)), (Some(true), Some(true)));
    guest.go();
}

#[test]
fn a_ring_of_unknown_history_is_served_without_a_cache() {
    let _guard = beside_others();
    let mut guest = comes(None);
    // It was told of a cache; its guest comes from elsewhere, and was not.
    assert_eq!(config(&mut guest), 1);
    guest.set_up(1);
    guest.start_at(0, 0);
    assert_eq!((write_back(&guest), kept(&guest)), (Some(false), None));
    guest.front.set_vring_enable(1, true).unwrap();
    guest.front.get_vring_base(0).unwrap();
    guest.front.get_vring_base(1).unwrap();
    guest.start_at(0, 8);
    assert_eq!(write_back(&guest), Some(false), "it only paused");
    guest.front.get_vring_base(0).unwrap();
    guest.start_at(0, 0);
    assert_eq!(write_back(&guest), Some(true), "its guest begins anew");
    guest.go();
    // A guest that cannot change it has what its disk began with.
    let mut guest = comes(None);
    let features = guest.front.get_features().unwrap() & !(1 << 26);
    let features = features & !config::CONFIG_WCE;
    guest.front.set_features(features).unwrap();
    guest.start_at(0, 7);
    assert_eq!(write_back(&guest), Some(true));
    guest.go();
}

#[test]
fn what_a_guest_believes_survives_a_reset_of_its_device() {
    let _guard = beside_others();
    let mut guest = comes(None);
    guest.start_at(0, 0);
    assert!(set_cache(&mut guest, 0));
    guest.front.reset_device().unwrap();
    guest.negotiate();
    guest.start_at(0, 0);
    assert_eq!(write_back(&guest), Some(false), "nobody told it otherwise");
    guest.go();
}

#[test]
fn a_cache_is_not_switched_off_where_that_cannot_be_kept() {
    let _guard = beside_others();
    let mut guest = comes(None);
    guest.fake.change(|told| told.refuse_keep = true);
    guest.start_at(0, 0);
    assert!(guest.runs(0), "it only is not known later");
    assert!(!set_cache(&mut guest, 0));
    assert_eq!((write_back(&guest), config(&mut guest)), (Some(true), 1));
    guest.fake.change(|told| told.refuse_keep = false);
    assert!(set_cache(&mut guest, 0));
    assert_eq!(kept(&guest), Some(false));
    guest.go();
}
