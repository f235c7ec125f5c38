//! The first words on a connection: who calls, and who was called.
//!
//! Always true: what a host says of itself counts only if its certificate says so too; one that is
//! refused hears why. Deliberately absent: which connections are made, and what is said on them
//! afterwards.

use super::certificates::is_of;
use super::shared::{Refused, Shared};
use super::wire::{self, Ended};
use engine::types::Uuid;
use node::frame::{FEATURE_DATA, Frame, HELLO_VERSION, Hello};
use rustls::pki_types::CertificateDer;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use tokio::io::{AsyncRead, AsyncWrite};

pub fn is_for_data(hello: &Hello) -> bool {
    hello.features & FEATURE_DATA != 0
}

/// Tells of the first ones, then ever more seldom.
pub fn count(counter: &AtomicU64, from: SocketAddr, why: &str) {
    let number = Refused::add(counter);
    if number.is_power_of_two() {
        tracing::warn!("cluster: {from} is refused: {why} ({number} so far)");
    }
}

/// Sends a last frame and waits until the other side has it.
pub async fn close_with<S>(stream: &mut S, frame: &Frame)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    use tokio::io::AsyncWriteExt;
    if wire::write_soon(stream, &frame.encode(HELLO_VERSION))
        .await
        .is_ok()
    {
        let _ = stream.shutdown().await;
        let _ = wire::read_soon(stream, HELLO_VERSION).await;
    }
}

/// Why there is no link with a host.
pub enum Unwelcome {
    Ended(String),
    /// It broke a rule.
    Frame(String),
    /// We refuse it.
    Host(String),
    /// It refuses us.
    Refused(String),
}

/// Hears who has called. What it is answered comes from its queue, once it is admitted.
pub async fn hear<S>(
    shared: &Shared,
    stream: &mut S,
    certificate: &CertificateDer<'_>,
) -> Result<(Hello, u16), Unwelcome>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let hello = first_word(stream).await?;
    check(shared, stream, certificate, hello, None).await
}

/// Says who calls and for what, and hears who was called.
pub async fn greet<S>(
    shared: &Shared,
    stream: &mut S,
    certificate: &CertificateDer<'_>,
    (called, features): (Uuid, u64),
) -> Result<(Hello, u16), Unwelcome>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let own = shared.hello(features).encode(HELLO_VERSION);
    let written = wire::write_soon(stream, &own).await;
    written.map_err(|ended| Unwelcome::Ended(ended.to_string()))?;
    let hello = first_word(stream).await?;
    check(shared, stream, certificate, hello, Some(called)).await
}

async fn first_word(stream: &mut (impl AsyncRead + Unpin)) -> Result<Hello, Unwelcome> {
    match wire::read_soon(stream, HELLO_VERSION).await {
        Ok(Frame::Hello(hello)) => Ok(hello),
        Ok(Frame::Refused { why }) => Err(Unwelcome::Refused(why)),
        Ok(other) => Err(Unwelcome::Frame(format!("{:?} comes first", other.kind()))),
        Err(ended @ Ended::Io(_)) => Err(Unwelcome::Ended(ended.to_string())),
        Err(ended) => Err(Unwelcome::Frame(ended.to_string())),
    }
}

async fn check<S>(
    shared: &Shared,
    stream: &mut S,
    certificate: &CertificateDer<'_>,
    hello: Hello,
    called: Option<Uuid>,
) -> Result<(Hello, u16), Unwelcome>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let is_other = called.is_some_and(|host| host != hello.host);
    let judged = match is_other || !is_of(certificate, hello.host) {
        true => Err("has the certificate of another host".to_owned()),
        false => shared.judge(&hello),
    };
    // A link makes a host that another one has let in a member; until then it has no copies.
    let judged = match is_for_data(&hello) && !shared.is_member(hello.host) {
        true => judged.and(Err("is no member that this host knows".to_owned())),
        false => judged,
    };
    match judged {
        Ok(version) => Ok((hello, version)),
        Err(why) => {
            let why = format!("host {}: {why}", hello.name);
            close_with(stream, &Frame::Refused { why: why.clone() }).await;
            Err(Unwelcome::Host(why))
        }
    }
}
