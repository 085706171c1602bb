//! Bytes of a known pattern, which show whether the bytes that arrive are those that were sent.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::timeout,
};

/// Bytes to read or write at once.
pub(crate) const CHUNK: usize = 256 * 1024;
/// Timeout of one read or write.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_mins(1);

/// Fills the buffer with the pattern's bytes from this offset on.
pub(crate) fn fill_pattern(offset: u64, buffer: &mut [u8]) {
    for (position, byte) in (offset..).zip(buffer.iter_mut()) {
        // The period is not a power of two: shifted data never matches.
        *byte = (position % 251) as u8;
    }
}

fn is_pattern(offset: u64, buffer: &[u8]) -> bool {
    (offset..)
        .zip(buffer)
        .all(|(position, byte)| u64::from(*byte) == position % 251)
}

/// Reads this many bytes and checks them.
pub(crate) async fn receive_pattern(
    stream: &mut (impl AsyncRead + Unpin),
    bytes: u64,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    while offset < bytes {
        let wanted = usize::try_from(bytes - offset).unwrap_or(CHUNK).min(CHUNK);
        let read = timeout(IDLE_TIMEOUT, stream.read(&mut buffer[..wanted])).await??;
        if read == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("it ended after {offset} of {bytes} bytes"),
            ));
        }
        if !is_pattern(offset, &buffer[..read]) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the bytes after {offset} are not those that were sent"),
            ));
        }
        offset += read as u64;
    }
    Ok(())
}

/// Writes this many bytes.
pub(crate) async fn send_pattern(
    stream: &mut (impl AsyncWrite + Unpin),
    bytes: u64,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    while offset < bytes {
        let wanted = usize::try_from(bytes - offset).unwrap_or(CHUNK).min(CHUNK);
        fill_pattern(offset, &mut buffer[..wanted]);
        timeout(IDLE_TIMEOUT, stream.write_all(&buffer[..wanted])).await??;
        offset += wanted as u64;
    }
    stream.flush().await
}
