//! The queues between the stack and its packet link.

use std::collections::{HashMap, VecDeque};

use smoltcp::{
    phy::{self, DeviceCapabilities, Medium},
    time as inner,
    wire::{IpProtocol, Ipv6Packet, TcpPacket, TcpSeqNumber},
};

/// Packets that wait in each direction; more are dropped, as on any link.
pub(super) const MAX_PACKETS: usize = 128;
/// MTU of a session in bytes: every IPv6 path carries packets of this size.
pub const MTU: usize = 1280;

#[derive(Default)]
pub(super) struct PacketQueues {
    pub(super) incoming: VecDeque<Vec<u8>>,
    pub(super) outgoing: VecDeque<Vec<u8>>,
    pub(super) sent_up_to: SentUpTo,
}

/// For each connection, by its ports, the sequence number after everything that it has sent.
pub(super) type SentUpTo = HashMap<(u16, u16), TcpSeqNumber>;

pub(super) struct ReceivedPacket(Vec<u8>);

pub(super) struct TransmitSlot<'a> {
    outgoing: &'a mut VecDeque<Vec<u8>>,
    sent_up_to: &'a mut SentUpTo,
}

impl phy::RxToken for ReceivedPacket {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl phy::TxToken for TransmitSlot<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let mut packet = vec![0; length];
        let result = f(&mut packet);
        set_sequence_of_pure_acknowledgement(&mut packet, self.sent_up_to);
        self.outgoing.push_back(packet);
        result
    }
}

/// Corrects the sequence number of a segment that carries nothing but an acknowledgement.
///
/// RFC 9293 (3.10.7.4) wants SND.NXT there: the number after everything that was sent. smoltcp 0.14
/// has one number (`remote_last_seq`) for "next to send" and "next to retransmit", and writes it
/// into pure acknowledgements while it retransmits. The other side then drops them as old. When
/// both sides retransmit at the same time, neither sees the other's acknowledgements, and the
/// connection hangs.
///
/// The fix belongs in smoltcp: keep the highest number that was sent and use it in segments without
/// payload. Once a release has it, this function and [`SentUpTo`] can go.
fn set_sequence_of_pure_acknowledgement(packet: &mut [u8], sent_up_to: &mut SentUpTo) {
    let Ok(mut packet) = Ipv6Packet::new_checked(packet) else {
        return;
    };
    if packet.next_header() != IpProtocol::Tcp {
        return;
    }
    let (from, to) = (packet.src_addr().into(), packet.dst_addr().into());
    let Ok(mut segment) = TcpPacket::new_checked(packet.payload_mut()) else {
        return;
    };
    let ports = (segment.src_port(), segment.dst_port());
    let (begin, length) = (segment.seq_number(), segment.segment_len());
    // One byte is a window probe or a keepalive. It counts as sent only when more follows.
    let is_probe = length == 1 && !segment.syn() && !segment.fin();
    let end = if is_probe { begin } else { begin + length };
    match sent_up_to.get_mut(&ports) {
        _ if segment.syn() => drop(sent_up_to.insert(ports, end)),
        Some(sent) if length == 0 && begin < *sent => {
            segment.set_seq_number(*sent);
            segment.fill_checksum(&from, &to);
        }
        Some(sent) => *sent = (*sent).max(end),
        None => {}
    }
}

impl phy::Device for PacketQueues {
    type RxToken<'a> = ReceivedPacket;
    type TxToken<'a> = TransmitSlot<'a>;

    fn receive(&mut self, _: inner::Instant) -> Option<(ReceivedPacket, TransmitSlot<'_>)> {
        if self.outgoing.len() >= MAX_PACKETS {
            return None;
        }
        let packet = self.incoming.pop_front()?;
        Some((
            ReceivedPacket(packet),
            TransmitSlot {
                outgoing: &mut self.outgoing,
                sent_up_to: &mut self.sent_up_to,
            },
        ))
    }

    fn transmit(&mut self, _: inner::Instant) -> Option<TransmitSlot<'_>> {
        let Self {
            outgoing,
            sent_up_to,
            ..
        } = self;
        (outgoing.len() < MAX_PACKETS).then_some(TransmitSlot {
            outgoing,
            sent_up_to,
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        capabilities
    }
}

#[cfg(test)]
pub(super) mod tests {
    use smoltcp::{
        phy::ChecksumCapabilities,
        wire::{Ipv6Repr, TcpControl, TcpRepr},
    };

    use super::{super::StackRole, *};

    /// A packet of the client with this segment.
    pub fn packet(begin: i32, control: TcpControl, payload: &[u8]) -> Vec<u8> {
        let segment = TcpRepr {
            src_port: 50_000,
            dst_port: 443,
            control,
            seq_number: TcpSeqNumber(begin),
            ack_number: (control != TcpControl::Syn).then_some(TcpSeqNumber(1)),
            window_len: 1000,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload,
        };
        let around = Ipv6Repr {
            src_addr: StackRole::CLIENT,
            dst_addr: StackRole::SERVER,
            next_header: IpProtocol::Tcp,
            payload_len: segment.buffer_len(),
            hop_limit: 64,
        };
        let mut bytes = vec![0; around.buffer_len() + segment.buffer_len()];
        let mut packet = Ipv6Packet::new_unchecked(&mut bytes[..]);
        around.emit(&mut packet);
        let checksums = ChecksumCapabilities::default();
        let (from, to) = (StackRole::CLIENT.into(), StackRole::SERVER.into());
        segment.emit(
            &mut TcpPacket::new_unchecked(packet.payload_mut()),
            &from,
            &to,
            &checksums,
        );
        bytes
    }

    /// The sequence numbers of segments after the correction.
    fn sent(segments: &[(i32, TcpControl, &[u8])]) -> Vec<i32> {
        let mut sent_up_to = SentUpTo::new();
        let number = |&(begin, control, payload): &(i32, TcpControl, &[u8])| {
            let mut bytes = packet(begin, control, payload);
            set_sequence_of_pure_acknowledgement(&mut bytes, &mut sent_up_to);
            let packet = Ipv6Packet::new_checked(&bytes[..]).unwrap();
            let segment = TcpPacket::new_checked(packet.payload()).unwrap();
            assert!(segment.verify_checksum(&StackRole::CLIENT.into(), &StackRole::SERVER.into()));
            segment.seq_number().0
        };
        segments.iter().map(number).collect()
    }

    #[test]
    fn a_pure_acknowledgement_has_the_number_after_everything_that_was_sent() {
        type Sent = (i32, TcpControl, &'static [u8]);
        let begin = |at| -> Sent { (at, TcpControl::Syn, &[]) };
        let data = |at| -> Sent { (at, TcpControl::None, &[7; 100]) };
        let ack = |at| -> Sent { (at, TcpControl::None, &[]) };
        let byte = |at| -> Sent { (at, TcpControl::None, &[0]) };
        let (last, hang_up): (Sent, Sent) =
            ((210, TcpControl::Fin, &[]), (10, TcpControl::Rst, &[]));
        assert_eq!(
            sent(&[begin(9), data(10), data(110), ack(210), data(10), ack(110)]),
            [9, 10, 110, 210, 10, 210]
        );
        assert_eq!(
            sent(&[begin(9), data(110), last, ack(110)])[3],
            211,
            "the end of a stream has a number"
        );
        assert_eq!(
            sent(&[begin(9), data(10), byte(110), ack(110)])[3],
            110,
            "a window probe may not be accepted"
        );
        assert_eq!(
            sent(&[begin(9), data(10), byte(109), ack(110)])[3],
            110,
            "nor a keepalive"
        );
        assert_eq!(
            sent(&[begin(9), byte(10), ack(11), data(10), ack(10)])[4],
            110
        );
        let high = i32::MAX - 50;
        assert_eq!(
            sent(&[begin(high - 1), data(high), ack(high)])[2],
            high.wrapping_add(100)
        );
        assert_eq!(
            sent(&[begin(9), data(10), hang_up])[2],
            110,
            "a reset is corrected, too"
        );
        assert_eq!(
            sent(&[begin(9), data(10), begin(4), ack(5)])[3],
            5,
            "a new connection on the same ports"
        );
    }
}
