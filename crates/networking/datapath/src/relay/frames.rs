//! Frames datagrams on a byte stream.

use std::io;

use bytes::{Buf as _, BytesMut};

use crate::message;

/// Maximum length of a datagram: an encrypted packet of the largest MTU.
pub(super) const MAX_DATAGRAM_LEN: usize = 9000;

/// Appends a datagram of at most [`MAX_DATAGRAM_LEN`] to the stream.
pub(super) fn put_datagram(datagram: &[u8], stream: &mut BytesMut) {
    let Ok(length) = u16::try_from(datagram.len()) else {
        return;
    };
    stream.extend_from_slice(&length.to_be_bytes());
    stream.extend_from_slice(datagram);
}

/// Received bytes that are not decoded yet.
#[derive(Debug, Default)]
pub(super) struct Frames(BytesMut);

impl Frames {
    /// The buffer for the next bytes of the stream.
    pub(super) fn space(&mut self) -> &mut BytesMut {
        self.0.reserve(2 * MAX_DATAGRAM_LEN);
        &mut self.0
    }

    /// The next datagram, if it is complete. After an error the stream is unusable.
    pub(super) fn next(&mut self) -> io::Result<Option<BytesMut>> {
        let Some(length) = self
            .0
            .first_chunk()
            .map(|length| usize::from(u16::from_be_bytes(*length)))
        else {
            return Ok(None);
        };
        if length > MAX_DATAGRAM_LEN {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a datagram of {length} bytes"),
            ));
        }
        if self.0.len() < 2 + length {
            return Ok(None);
        }
        self.0.advance(2);
        let datagram = self.0.split_to(length);
        match message::datagram_kind(&datagram) {
            Some(_) => Ok(Some(datagram)),
            None => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "not a WireGuard message",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use liqo_byte_mutations::mutated;
    use proptest::prelude::*;

    use super::*;

    fn datagram(length: usize) -> Vec<u8> {
        [&[4, 0, 0, 0][..], &vec![7; length - 4]].concat()
    }

    #[test]
    fn a_datagram_that_is_too_large_or_not_wireguard_ends_the_stream() {
        for bytes in [&[0xff, 0xff][..], &[0, 5, 1, 2, 3, 4, 5], &[0, 0]] {
            let mut frames = Frames::default();
            frames.space().extend_from_slice(bytes);
            assert!(frames.next().is_err(), "{bytes:?}");
        }
        let mut frames = Frames::default();
        put_datagram(&datagram(MAX_DATAGRAM_LEN), frames.space());
        assert_eq!(frames.next().unwrap().unwrap(), datagram(MAX_DATAGRAM_LEN));
    }

    proptest! {
        #[test]
        fn datagrams_arrive_as_they_were_sent_however_the_stream_is_cut(
            lengths in proptest::collection::vec(32usize..2000, 1..20), cut in 1usize..3000,
        ) {
            let (mut stream, mut frames, mut arrived) = (BytesMut::new(), Frames::default(), Vec::new());
            for length in &lengths {
                put_datagram(&datagram(*length), &mut stream);
            }
            for part in stream.chunks(cut) {
                frames.space().extend_from_slice(part);
                while let Some(datagram) = frames.next().unwrap() {
                    arrived.push(datagram.len());
                }
            }
            prop_assert_eq!(arrived, lengths);
        }

        #[test]
        fn a_mutated_stream_gives_whole_datagrams_until_it_ends_and_keeps_little(
            stream in mutated(proptest::collection::vec(32usize..2000, 1..20).prop_map(|lengths| {
                let mut stream = BytesMut::new();
                for length in lengths {
                    put_datagram(&datagram(length), &mut stream);
                }
                stream.to_vec()
            })),
            cut in 1usize..3000,
        ) {
            let mut frames = Frames::default();
            'stream: for part in stream.chunks(cut) {
                frames.space().extend_from_slice(part);
                loop {
                    match frames.next() {
                        Ok(Some(datagram)) => prop_assert!(datagram.len() <= MAX_DATAGRAM_LEN && message::datagram_kind(&datagram).is_some()),
                        Ok(None) => break,
                        Err(_) => break 'stream,
                    }
                }
                prop_assert!(frames.0.len() < MAX_DATAGRAM_LEN + 2);
            }
        }
    }
}
