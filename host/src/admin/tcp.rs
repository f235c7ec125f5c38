//! The TCP side of the admin interface: what strangers can reach, on a clock.
//!
//! Owns the connections of one TCP listener. Always true: a client that does not finish the head
//! of a request in [`Clocks::head`], be it the first or a later one, is cut off, and so is one that
//! takes nothing of its reply for [`Clocks::take`]; so that who sends a byte at a time, or nothing,
//! gives the place back that it took from others. Deliberately absent: what is answered and to
//! whom, which is [`super::web`]'s; clocks on the admin socket, whose clients are let in by its
//! group.

use super::listener::Bounded;
use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long clients may take for what.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// For the head of a request, from the connection or the end of the reply before.
    head: Duration,
    /// To take any byte of a reply.
    take: Duration,
}

impl Clocks {
    /// A head comes in one or two packets; nobody who means well takes this long. A laptop that was
    /// closed for a moment may go on; one that is gone keeps no place.
    pub const USUAL: Clocks = Clocks {
        head: Duration::from_secs(10),
        take: Duration::from_secs(30),
    };
}

/// Serves until `end` is closed; returns when replies under way are sent.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    clocks: Clocks,
    end: watch::Receiver<()>,
) {
    let mut listener = Bounded::new(listener).with_patience(clocks.take);
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            (stream, _) = listener.accept() => stream,
            () = closed(end.clone()) => break,
            // What has ended is forgotten as it ends.
            Some(_) = connections.join_next() => continue,
        };
        connections.spawn(converse(stream, router.clone(), clocks.head, end.clone()));
    }
    while connections.join_next().await.is_some() {}
}

async fn converse<S>(stream: S, router: Router, head: Duration, end: watch::Receiver<()>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut served = pin!(served);
    tokio::select! {
        // However it ended, its client knows best.
        _ = served.as_mut() => return,
        () = closed(end) => served.as_mut().graceful_shutdown(),
    }
    let _ = served.await;
}

async fn closed(mut end: watch::Receiver<()>) {
    while end.changed().await.is_ok() {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    const CLOCKS: Clocks = Clocks {
        head: Duration::from_millis(300),
        take: Duration::from_millis(300),
    };
    /// A reply that no socket buffer takes whole.
    const LARGE: usize = 64 << 20;
    /// A server that cuts nobody off would keep them for ever.
    const LONG: Duration = Duration::from_secs(60);

    async fn started() -> (SocketAddr, watch::Sender<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let address = listener.local_addr().expect("has an address");
        let router = Router::new()
            .route("/", get(|| async { "here" }))
            .route("/large", get(|| async { vec![0u8; LARGE] }));
        let (end, ended) = watch::channel(());
        tokio::spawn(serve(listener, router, CLOCKS, ended));
        (address, end)
    }

    async fn sent(address: SocketAddr, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.expect("connects");
        stream.write_all(bytes).await.expect("sent");
        stream
    }

    /// What comes until the server closes the connection.
    async fn rest(mut stream: TcpStream) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A reset is an end as well.
        let _ = stream.read_to_end(&mut bytes).await;
        bytes
    }

    fn run<T>(test: impl Future<Output = T>) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a runtime");
        let test = async { tokio::time::timeout(LONG, test).await };
        runtime
            .block_on(test)
            .expect("everybody is cut off in time")
    }

    #[test]
    fn who_sends_no_whole_head_is_cut_off() {
        run(async {
            let (address, _end) = started().await;
            let silent = sent(address, b"").await;
            let half = sent(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HT").await;
            assert_eq!(rest(silent).await, b"");
            let replied = rest(half).await;
            let first = String::from_utf8_lossy(&replied);
            assert!(first.starts_with("HTTP/1.1 200 "), "{first}");
        });
    }

    #[test]
    fn who_takes_nothing_of_its_reply_is_cut_off_and_who_takes_it_is_not() {
        run(async {
            let (address, _end) = started().await;
            let ask = b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            let idle = sent(address, ask).await;
            let replied = rest(sent(address, ask).await).await;
            assert!(replied.len() > LARGE, "{} bytes", replied.len());
            tokio::time::sleep(CLOCKS.take * 2).await;
            let replied = rest(idle).await;
            assert!(replied.len() < LARGE, "{} bytes", replied.len());
        });
    }

    #[test]
    fn replies_under_way_are_sent_before_the_end_and_nobody_new_is_let_in() {
        run(async {
            let (address, end) = started().await;
            let mut open = sent(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
            let mut first = [0; 4];
            open.read_exact(&mut first).await.expect("a reply");
            drop(end);
            assert!(rest(open).await.ends_with(b"here"));
            let refused = TcpStream::connect(address).await;
            assert!(refused.is_err() || rest(refused.expect("open")).await.is_empty());
        });
    }
}
