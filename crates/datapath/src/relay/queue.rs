//! Datagrams that wait for TCP.

use std::collections::VecDeque;

use bytes::BytesMut;

use super::frames;

/// So many bytes wait at most: what a link of 100 Mbit/s carries in 20 ms.
const ROOM: usize = 256 << 10;
/// So many are handed to TLS at once.
const BATCH: usize = 32 << 10;

/// Datagrams in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl Queue {
    /// Adds one. The oldest make room for it: those who sent them have most likely sent them again. Says how many went.
    pub(super) fn push(&mut self, datagram: &[u8]) -> u64 {
        self.bytes += datagram.len();
        self.waiting.push_back(datagram.into());
        let mut dropped = 0;
        while self.bytes > ROOM {
            let Some(oldest) = self.waiting.pop_front() else { break };
            self.bytes -= oldest.len();
            dropped += 1;
        }
        dropped
    }

    /// Moves as many as are sent at once.
    pub(super) fn fill(&mut self, stream: &mut BytesMut) {
        while stream.len() < BATCH {
            let Some(datagram) = self.waiting.pop_front() else { break };
            self.bytes -= datagram.len();
            frames::put(&datagram, stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_and_the_oldest_go() {
        let mut queue = Queue::default();
        let datagrams = 10 * ROOM / 1000;
        let dropped: u64 = (0..datagrams).map(|number| queue.push(&[u8::try_from(number % 251).unwrap(); 1000])).sum();
        assert_eq!(queue.waiting.len() as u64 + dropped, datagrams as u64);
        assert_eq!(queue.waiting.len(), ROOM / 1000);
        assert_eq!(queue.waiting.back().unwrap()[0], u8::try_from((datagrams - 1) % 251).unwrap());
        let mut stream = BytesMut::new();
        while queue.bytes > 0 {
            stream.clear();
            queue.fill(&mut stream);
            assert!(stream.len() <= BATCH + 1002);
        }
        assert!(queue.waiting.is_empty());
    }
}
