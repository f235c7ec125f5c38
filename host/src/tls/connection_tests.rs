//! The words before TLS, and the two directions behind it, without a network.

use super::*;
use crate::nbd::{answer as reply, option as opt, option_reply, option_request};
use tokio::io::duplex;

/// What the server sends for pieces of input, up to its end.
fn negotiated(pieces: &[Vec<u8>]) -> (Vec<u8>, Result<Tls, String>) {
    let runtime = runtime();
    runtime.block_on(async {
        let (mut client, mut server) = duplex(1 << 20);
        for piece in pieces {
            client.write_all(piece).await.expect("there is space");
        }
        client.shutdown().await.expect("closed");
        let ended = negotiate(&mut server).await;
        drop(server);
        let mut sent = Vec::new();
        client.read_to_end(&mut sent).await.expect("read");
        (sent, ended.map_err(|refused| refused.to_string()))
    })
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

#[test]
fn a_client_comes_to_tls_and_one_with_bytes_behind_hears_no_yes() {
    let start = [vec![0, 0, 0, 3], option_request(opt::STARTTLS, &[])].concat();
    let (sent, ended) = negotiated(std::slice::from_ref(&start));
    assert_eq!(ended, Ok(Tls::Done { no_zeroes: true }));
    let yes = option_reply(opt::STARTTLS, reply::ACK, "");
    assert_eq!(sent, [&nbd::GREETING[..], &yes].concat());
    let injected = [start, option_request(opt::STRUCTURED_REPLY, &[])].concat();
    let (sent, ended) = negotiated(&[injected]);
    assert_eq!(sent, nbd::GREETING);
    assert_eq!(ended, Err(Closing::PlainBehindTls.to_string()));
}

#[test]
fn a_client_that_leaves_before_tls_is_no_news() {
    let (_, ended) = negotiated(&[]);
    assert_eq!(ended, Err(Refused::Left.to_string()));
    assert!(Refused::Left.is_silent() && !Refused::Session(Closing::TlsRequired).is_silent());
}

/// Both sides say more than all buffers hold, and close one after the other.
#[test]
fn a_relay_brings_every_byte_and_the_end_of_each_side_to_the_other() {
    const BYTES: usize = 3 << 20;
    let says = |first: u8| -> Vec<u8> { (0..BYTES).map(|at| first ^ (at / 7) as u8).collect() };
    runtime().block_on(async {
        let (mut client, near) = duplex(1000);
        let (ours, theirs) = pair().expect("a pair");
        theirs.set_nonblocking(true).expect("set");
        let mut shard = UnixStream::from_std(theirs).expect("a socket");
        let joined = tokio::spawn(join(near, ours, BUFFER_BYTES_MAX));
        let asks = tokio::spawn(async move {
            client.write_all(&says(1)).await.expect("taken");
            client.shutdown().await.expect("closed");
            let mut heard = Vec::new();
            client.read_to_end(&mut heard).await.expect("read");
            heard
        });
        let mut heard = Vec::new();
        shard.read_to_end(&mut heard).await.expect("read");
        assert!(heard == says(1), "the requests differ");
        shard.write_all(&says(9)).await.expect("taken");
        drop(shard);
        assert!(asks.await.expect("ends") == says(9), "the answers differ");
        joined.await.expect("ends");
    });
}

/// The end of the shard's side ends a connection whose client says nothing.
#[test]
fn a_client_hears_the_last_words_of_the_shard_and_its_end() {
    runtime().block_on(async {
        let (mut client, near) = duplex(1000);
        let (ours, theirs) = pair().expect("a pair");
        let joined = tokio::spawn(join(near, ours, BUFFER_BYTES_MIN));
        std::io::Write::write_all(&mut &theirs, b"farewell").expect("sent");
        drop(theirs);
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.expect("read");
        assert_eq!(heard, b"farewell");
        joined.await.expect("ends");
    });
}
