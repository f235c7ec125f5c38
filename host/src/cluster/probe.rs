//! Whether a host answers, asked by a program that has no links.
//!
//! Always true: who answers has shown the certificate of that host; nothing is said to it, so that
//! its links stay as they are. Deliberately absent: what it is doing.

use super::identity::Identity;
use super::{certificates, wire};
use node::frame::Host;
use std::net::SocketAddr;
use tokio::task::JoinSet;

/// One of its addresses answers as that host. Takes as long as the slowest of them.
pub fn answers(identity: &Identity, host: &Host) -> bool {
    let Ok(tls) = certificates::client(&identity.credentials()) else {
        return false;
    };
    let Ok(runtime) = super::runtime("probe") else {
        return false;
    };
    let addresses = host.addresses.iter();
    let addresses: Vec<SocketAddr> = addresses.filter_map(|it| it.parse().ok()).collect();
    runtime.block_on(async {
        let mut calls = JoinSet::new();
        for address in addresses {
            calls.spawn(wire::call(address, host.id, tls.clone()));
        }
        while let Some(called) = calls.join_next().await {
            if matches!(called, Ok(Ok(_))) {
                return true;
            }
        }
        false
    })
}
