//! Connections: who calls, who is let in, and the conversation.
//!
//! Always true: a caller proves who it is before it is heard, or may only ask to join; callers that
//! are not known yet are bounded in number and time; a conversation ends when the other side breaks
//! a rule, and that is counted. Deliberately absent: which connection is kept, which is `shared`'s.

use super::data::Data;
use super::drill;
use super::greeting::{Unwelcome, close_with, count, greet, hear, is_for_data};
use super::shared::{Admitted, Refused, Shared};
use super::wire::{self, Ended, Movable};
use crate::error::cause;
use crate::vault::Vault;
use engine::types::Uuid;
use node::frame::{Frame, HELLO_VERSION, Question};
use rustls::{ClientConfig, ServerConfig};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;

const TICK: Duration = Duration::from_millis(50);
const LISTEN_AGAIN: Duration = Duration::from_secs(2);
/// After an error of accept, as for want of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// How long a host may take no byte.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct Tls {
    pub server: Arc<ServerConfig>,
    pub client: Arc<ClientConfig>,
}

/// An address, and its listener if there is one yet.
pub type Place = (SocketAddr, Option<std::net::TcpListener>);

/// Listens at all addresses that are there. Others may come up after the daemon does.
pub fn places(addresses: &[SocketAddr]) -> Vec<Place> {
    let listener = |address: SocketAddr| {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    let place = |address: &SocketAddr| {
        let listener: std::io::Result<_> = listener(*address);
        let listener = listener.inspect_err(|error| {
            let why = cause(error);
            tracing::error!("cluster: listen {address}: {why}; it is tried again");
        });
        (*address, listener.ok())
    };
    addresses.iter().map(place).collect()
}

/// Runs all links for as long as it is polled. Callers who bring data are handed on.
pub async fn run(shared: Arc<Shared>, tls: Tls, places: Vec<Place>, data: Arc<Data>) {
    for place in places {
        let listen = listen(shared.clone(), tls.clone(), place, data.clone());
        tokio::spawn(listen);
    }
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for host in shared.tick() {
            tokio::spawn(outgoing(shared.clone(), tls.client.clone(), host));
        }
    }
}

async fn listen(shared: Arc<Shared>, tls: Tls, (address, listener): Place, data: Arc<Data>) {
    let mut listener = listener.and_then(|it| TcpListener::from_std(it).ok());
    let listener = loop {
        if let Some(listener) = listener {
            break listener;
        }
        sleep(LISTEN_AGAIN).await;
        listener = TcpListener::bind(address).await.ok();
    };
    loop {
        let Ok(place) = shared.unknown.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, from)) => {
                let (shared, tls) = (shared.clone(), tls.server.clone());
                let data = data.clone();
                tokio::spawn(async move {
                    let admitted = incoming(&shared, tls, (stream, from), &data).await;
                    drop(place);
                    if let Some(conversation) = admitted {
                        conversation.await;
                    }
                });
            }
            Err(_) => sleep(ACCEPT_AGAIN).await,
        }
    }
}

/// A caller, until it is known. Gives what to do from then on.
async fn incoming(
    shared: &Arc<Shared>,
    tls: Arc<ServerConfig>,
    (stream, from): (TcpStream, SocketAddr),
    data: &Arc<Data>,
) -> Option<impl Future<Output = ()> + use<>> {
    // Without it a ping waits for the acknowledgment of the one before.
    stream.set_nodelay(true).ok()?;
    let stream = Movable::new(stream);
    let accepted = timeout(wire::PATIENCE, TlsAcceptor::from(tls).accept(stream))
        .await
        .ok()?;
    let mut stream = match accepted {
        Ok(stream) => stream,
        Err(error) => {
            if error
                .get_ref()
                .is_some_and(|inner| inner.is::<rustls::Error>())
            {
                count(&shared.refused.certificates, from, &error.to_string());
            }
            return None;
        }
    };
    let shown = stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(<[_]>::first)
        .cloned();
    let Some(certificate) = shown else {
        join(shared, &mut stream, from).await;
        return None;
    };
    match hear(shared, &mut stream, &certificate).await {
        Ok((hello, version)) if is_for_data(&hello) => {
            data.take(stream, hello.host, version, from);
            None
        }
        Ok((hello, version)) => {
            let admitted = shared.admit(&hello, version, false)?;
            Some(converse(shared.clone(), stream, admitted))
        }
        Err(Unwelcome::Ended(_)) => None,
        Err(Unwelcome::Frame(why)) => {
            count(&shared.refused.frames, from, &why);
            None
        }
        Err(Unwelcome::Host(why) | Unwelcome::Refused(why)) => {
            count(&shared.refused.hosts, from, &why);
            None
        }
    }
}

/// The only thing that a caller without a certificate may say.
async fn join<S>(shared: &Arc<Shared>, stream: &mut S, from: SocketAddr)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let answer = match wire::read_soon(stream, HELLO_VERSION).await {
        Ok(Frame::Join(join)) => {
            let inside = shared.clone();
            // It writes the list of members.
            let welcome = tokio::task::spawn_blocking(move || {
                let welcome = inside.welcome(&join);
                if welcome.is_ok() {
                    tracing::info!("cluster: host {} ({}) joins", join.name, join.host);
                }
                welcome
            });
            match welcome.await {
                Ok(Ok(welcome)) => Frame::Welcome(welcome),
                Ok(Err(why)) => {
                    count(&shared.refused.joins, from, &why);
                    Frame::Refused { why }
                }
                Err(_) => return,
            }
        }
        Ok(_) => {
            let why = "shows no certificate, and may only join".to_owned();
            count(&shared.refused.joins, from, &why);
            Frame::Refused { why }
        }
        Err(Ended::Io(_)) => return,
        Err(Ended::Frame(error)) => {
            count(&shared.refused.joins, from, &format!("a frame is {error}"));
            return;
        }
    };
    close_with(stream, &answer).await;
}

async fn outgoing(shared: Arc<Shared>, tls: Arc<ClientConfig>, host: Uuid) {
    let mut why = "no address is known".to_owned();
    for address in shared.addresses(host) {
        let mut stream = match wire::call(address, host, tls.clone()).await {
            Ok(stream) => stream,
            Err(ended) => {
                why = format!("{address}: {ended}");
                continue;
            }
        };
        let shown = stream
            .get_ref()
            .1
            .peer_certificates()
            .and_then(<[_]>::first)
            .cloned();
        let Some(certificate) = shown else {
            continue;
        };
        match greet(&shared, &mut stream, &certificate, (host, 0)).await {
            Ok((hello, version)) => {
                if let Some(admitted) = shared.admit(&hello, version, true) {
                    converse(shared, stream, admitted).await;
                }
                return;
            }
            Err(Unwelcome::Ended(ended)) => why = format!("{address}: {ended}"),
            Err(Unwelcome::Frame(wrong) | Unwelcome::Host(wrong)) => {
                return shared.not_called(host, format!("{address}: {wrong}"), true);
            }
            Err(Unwelcome::Refused(wrong)) => {
                return shared.not_called(host, format!("it refuses: {wrong}"), true);
            }
        }
    }
    shared.not_called(host, why, false);
}

/// From the moment a link is up until it is down.
async fn converse<S>(shared: Arc<Shared>, stream: S, admitted: Admitted)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Admitted {
        number,
        host,
        version,
        queue,
        close,
    } = admitted;
    let (mut reader, writer) = tokio::io::split(stream);
    let list = Frame::Hosts(shared.state().hosts.list());
    shared.send(host, &list);
    let writing = send_all(writer, queue);
    tokio::pin!(writing);
    let reading = async {
        loop {
            let frame = match wire::read(&mut reader, version).await {
                Ok(frame) => frame,
                Err(ended) => {
                    if matches!(ended, Ended::Frame(_)) {
                        Refused::add(&shared.refused.frames);
                    }
                    return ended.to_string();
                }
            };
            if !shared.is_current(host, number) {
                return "another connection took its place".into();
            }
            if let Frame::Refused { why } = frame {
                return why;
            }
            if let Frame::Ask {
                number,
                question,
                text,
            } = frame
            {
                let task = answer(shared.clone(), host, number, question, text);
                tokio::spawn(task);
            } else if let Err(why) = shared.take(host, frame) {
                Refused::add(&shared.refused.frames);
                return why;
            }
        }
    };
    let why = tokio::select! {
        why = reading => why,
        why = &mut writing => why,
        () = close.notified() => "nothing was heard, or another connection took its place".into(),
    };
    tracing::debug!("cluster: link to {host} ends: {why}");
    shared.ended(host, number, why);
}

async fn send_all(
    mut writer: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<Vec<u8>>,
) -> String {
    while let Some(bytes) = queue.recv().await {
        match timeout(WRITE_PATIENCE, wire::write(&mut writer, &bytes)).await {
            Ok(Ok(())) => {}
            Ok(Err(ended)) => return ended.to_string(),
            Err(_) => return "it takes nothing".into(),
        }
    }
    "another connection took its place".into()
}

/// Tries what another host wants to know, if that is not too much at a time.
async fn answer(shared: Arc<Shared>, host: Uuid, number: u64, question: Question, text: String) {
    let Ok(_place) = shared.answers.try_acquire() else {
        let text = "tries something else now".to_owned();
        shared.send(
            host,
            &Frame::Answer {
                number,
                ok: false,
                text,
            },
        );
        return;
    };
    let (ok, text) = match question {
        Question::Reach => reach(&shared, host).await,
        Question::Drill => {
            let vault = shared.settings.vault.clone();
            let place = Vault::parse(&vault)
                .ok()
                .and_then(|it| drill::Place::of(&it));
            let try_it = move || match place {
                Some(place) => drill::second(&place, &text),
                None => (false, "has another vault in its configuration".into()),
            };
            let tried = tokio::task::spawn_blocking(try_it).await;
            tried.unwrap_or_else(|_| (false, "is stopping".into()))
        }
    };
    shared.send(host, &Frame::Answer { number, ok, text });
}

/// Whether all addresses of a host answer as that host.
pub async fn reach(shared: &Shared, host: Uuid) -> (bool, String) {
    let addresses = shared
        .state()
        .hosts
        .get(host)
        .map(|host| host.addresses.clone());
    let Ok(tls) = super::certificates::client(&shared.identity.credentials()) else {
        return (false, "its own certificates are unfit".into());
    };
    for address in addresses.unwrap_or_default() {
        let Ok(parsed) = address.parse() else {
            return (false, format!("{address} is no address"));
        };
        if let Err(ended) = wire::call(parsed, host, tls.clone()).await {
            return (false, format!("{address}: {ended}"));
        }
    }
    (true, String::new())
}
