//! The header in which the kernel and a packet socket state, in front of a frame, whether it is a
//! packet of several segments, and the state of its checksum (`PACKET_VNET_HDR`).

use crate::segments::{Checksum, Merged, Offload};

/// `struct virtio_net_hdr`, in the machine's byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct VirtioHeader {
    /// [`NEEDS_CHECKSUM`], `CHECKSUM_VALID`.
    pub(super) flags: u8,
    /// Whether and how the packet is cut, for example [`GSO_TCP_V4`].
    pub(super) kind: u8,
    /// Length of all headers in bytes.
    pub(super) headers: u16,
    /// Payload of each segment in bytes.
    pub(super) segment: u16,
    /// Offset in the frame of the header with the checksum.
    pub(super) checksum_from: u16,
    /// Offset of the checksum in that header.
    pub(super) checksum_at: u16,
}

/// What the kernel's header (`struct virtio_net_hdr`) states about a frame; without a header, that
/// the frame is what the wire carried.
pub(super) fn offload(stated: &[u8]) -> Offload {
    let Ok(&[flags, kind, _, _, size, more_size, start, more_start, _, _]) =
        <&[u8; OFFLOAD_HEADER]>::try_from(stated)
    else {
        return Offload::default();
    };
    let size = u16::from_ne_bytes([size, more_size]);
    Offload {
        merged: match kind & !GSO_ECN {
            GSO_NONE => Merged::No,
            GSO_TCP_V4 | GSO_TCP_V6 => Merged::Tcp(size),
            GSO_UDP => Merged::Udp(size),
            _ => Merged::Unknown,
        },
        checksum: match flags {
            flags if flags & NEEDS_CHECKSUM != 0 => Checksum::Partial {
                start: u16::from_ne_bytes([start, more_start]),
            },
            flags if flags & CHECKSUM_VALID != 0 => Checksum::Valid,
            _ => Checksum::Unknown,
        },
    }
}

/// Length of `struct virtio_net_hdr`, and the values of its fields (linux/virtio_net.h).
pub(super) const OFFLOAD_HEADER: usize = 10;
pub(super) const NEEDS_CHECKSUM: u8 = 1;
const CHECKSUM_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
pub(super) const GSO_TCP_V4: u8 = 1;
pub(super) const GSO_TCP_V6: u8 = 4;
const GSO_UDP: u8 = 5;
const GSO_ECN: u8 = 0x80;
