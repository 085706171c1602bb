//! Packets on their way in and out of the stack.

use std::collections::{HashMap, VecDeque};

use smoltcp::{
    phy::{self, DeviceCapabilities, Medium},
    time as inner,
    wire::{IpProtocol, Ipv6Packet, TcpPacket, TcpSeqNumber},
};

use super::PACKETS;
use crate::MTU;

/// What waits in each direction, and what is to be known of it.
#[derive(Default)]
pub(super) struct Packets {
    pub(super) incoming: VecDeque<Vec<u8>>,
    pub(super) outgoing: VecDeque<Vec<u8>>,
    pub(super) reached: Reached,
}

/// How far each connection, by its ports, has sent.
pub(super) type Reached = HashMap<(u16, u16), TcpSeqNumber>;

pub(super) struct Taken(Vec<u8>);
pub(super) struct Room<'a> {
    outgoing: &'a mut VecDeque<Vec<u8>>,
    reached: &'a mut Reached,
}

impl phy::RxToken for Taken {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl phy::TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let mut packet = vec![0; length];
        let result = f(&mut packet);
        acknowledge_as_far_as_was_sent(&mut packet, self.reached);
        self.outgoing.push_back(packet);
        result
    }
}

/// A segment that only acknowledges bears the number behind all that was sent. While smoltcp sends again what was lost, it writes the
/// number of that instead, and an end that has it all refuses the segment: when both ends send again, neither hears the other one.
fn acknowledge_as_far_as_was_sent(packet: &mut [u8], reached: &mut Reached) {
    let Ok(mut packet) = Ipv6Packet::new_checked(packet) else { return };
    if packet.next_header() != IpProtocol::Tcp {
        return;
    }
    let (from, to) = (packet.src_addr().into(), packet.dst_addr().into());
    let Ok(mut segment) = TcpPacket::new_checked(packet.payload_mut()) else { return };
    let ports = (segment.src_port(), segment.dst_port());
    let (begin, length) = (segment.seq_number(), segment.segment_len());
    // One byte asks after a window that is shut, or an end that is silent, and counts once more follows it.
    let is_question = length == 1 && !segment.syn() && !segment.fin();
    let end = if is_question { begin } else { begin + length };
    match reached.get_mut(&ports) {
        _ if segment.syn() => drop(reached.insert(ports, end)),
        Some(far) if length == 0 && begin < *far => {
            segment.set_seq_number(*far);
            segment.fill_checksum(&from, &to);
        }
        Some(far) => *far = (*far).max(end),
        None => {}
    }
}

impl phy::Device for Packets {
    type RxToken<'a> = Taken;
    type TxToken<'a> = Room<'a>;

    fn receive(&mut self, _: inner::Instant) -> Option<(Taken, Room<'_>)> {
        if self.outgoing.len() >= PACKETS {
            return None;
        }
        let packet = self.incoming.pop_front()?;
        Some((Taken(packet), Room { outgoing: &mut self.outgoing, reached: &mut self.reached }))
    }

    fn transmit(&mut self, _: inner::Instant) -> Option<Room<'_>> {
        let Self { outgoing, reached, .. } = self;
        (outgoing.len() < PACKETS).then_some(Room { outgoing, reached })
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

    use super::{super::End, *};

    /// A packet of the near end with this segment, and the number that it begins with.
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
            src_addr: End::NEAR,
            dst_addr: End::FAR,
            next_header: IpProtocol::Tcp,
            payload_len: segment.buffer_len(),
            hop_limit: 64,
        };
        let mut bytes = vec![0; around.buffer_len() + segment.buffer_len()];
        let mut packet = Ipv6Packet::new_unchecked(&mut bytes[..]);
        around.emit(&mut packet);
        let checksums = ChecksumCapabilities::default();
        let (from, to) = (End::NEAR.into(), End::FAR.into());
        segment.emit(&mut TcpPacket::new_unchecked(packet.payload_mut()), &from, &to, &checksums);
        bytes
    }

    /// The numbers that segments begin with when they have gone out.
    fn sent(segments: &[(i32, TcpControl, &[u8])]) -> Vec<i32> {
        let mut reached = Reached::new();
        let number = |&(begin, control, payload): &(i32, TcpControl, &[u8])| {
            let mut bytes = packet(begin, control, payload);
            acknowledge_as_far_as_was_sent(&mut bytes, &mut reached);
            let packet = Ipv6Packet::new_checked(&bytes[..]).unwrap();
            let segment = TcpPacket::new_checked(packet.payload()).unwrap();
            assert!(segment.verify_checksum(&End::NEAR.into(), &End::FAR.into()));
            segment.seq_number().0
        };
        segments.iter().map(number).collect()
    }

    #[test]
    fn what_only_acknowledges_bears_the_number_behind_all_that_was_sent() {
        type Sent = (i32, TcpControl, &'static [u8]);
        let begin = |at| -> Sent { (at, TcpControl::Syn, &[]) };
        let data = |at| -> Sent { (at, TcpControl::None, &[7; 100]) };
        let ack = |at| -> Sent { (at, TcpControl::None, &[]) };
        let byte = |at| -> Sent { (at, TcpControl::None, &[0]) };
        let (last, hang_up): (Sent, Sent) = ((210, TcpControl::Fin, &[]), (10, TcpControl::Rst, &[]));
        assert_eq!(sent(&[begin(9), data(10), data(110), ack(210), data(10), ack(110)]), [9, 10, 110, 210, 10, 210]);
        assert_eq!(sent(&[begin(9), data(110), last, ack(110)])[3], 211, "the end of a stream has a number");
        assert_eq!(
            sent(&[begin(9), data(10), byte(110), ack(110)])[3],
            110,
            "a question after a window that is shut is not taken"
        );
        assert_eq!(sent(&[begin(9), data(10), byte(109), ack(110)])[3], 110, "nor is one whether the other end is there");
        assert_eq!(sent(&[begin(9), byte(10), ack(11), data(10), ack(10)])[4], 110);
        let far = i32::MAX - 50;
        assert_eq!(sent(&[begin(far - 1), data(far), ack(far)])[2], far.wrapping_add(100));
        assert_eq!(sent(&[begin(9), data(10), hang_up])[2], 110, "who hangs up is believed");
        assert_eq!(sent(&[begin(9), data(10), begin(4), ack(5)])[3], 5, "the ports have another connection");
    }
}
