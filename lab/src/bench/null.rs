//! A server that does nothing: what the client can do at most.
//!
//! Owns one thread for each connection, from its first request to its end. Always true: requests
//! are taken in batches and answered in batches, reads with zeroes, so what is left is the cost of
//! the sockets and of the client. Deliberately absent: a negotiation, and every error.

use super::pipe::Pipe;
use super::work::BLOCK_BYTES;
use host::nbd::{self, RequestHead, command};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

const INPUT_BYTES: usize = 512 << 10;

/// A client with its server; the server ends with the client.
pub fn connect(connections: usize) -> io::Result<Pipe> {
    let mut streams = Vec::new();
    for _ in 0..connections {
        let (client, server) = UnixStream::pair()?;
        thread::Builder::new()
            .name("bench-null".into())
            // The end of the client is the end of the server, and no failure.
            .spawn(move || drop(serve(server)))?;
        streams.push(client);
    }
    Ok(Pipe::over(streams))
}

fn serve(mut stream: UnixStream) -> io::Result<()> {
    let (mut input, mut out) = (vec![0; INPUT_BYTES], Vec::new());
    let zeroes = [0; BLOCK_BYTES as usize];
    let mut end = 0;
    // Payload of a write that is still to come.
    let mut skip = 0;
    loop {
        let count = stream.read(&mut input[end..])?;
        if count == 0 {
            return Ok(());
        }
        end += count;
        let mut start = 0;
        loop {
            let taken = skip.min(end - start);
            (start, skip) = (start + taken, skip - taken);
            let Some(head) = input[start..end].first_chunk().filter(|_| skip == 0) else {
                break;
            };
            let head = RequestHead::parse(head);
            start += nbd::REQUEST_BYTES;
            out.extend_from_slice(&nbd::simple_head(0, head.cookie));
            match head.command {
                command::READ => out.extend_from_slice(&zeroes[..head.length as usize]),
                command::WRITE => skip = head.length as usize,
                command::DISC => return Ok(()),
                _ => {}
            }
        }
        input.copy_within(start..end, 0);
        end -= start;
        stream.write_all(&out)?;
        out.clear();
    }
}
