/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Prints the memory layout of the header's structures, for the library's own test.
 */
#include <netnice.h>
#include <stddef.h>
#include <stdio.h>

#define SIZE(s) printf(#s " %zu\n", sizeof(struct s))
#define FIELD(s, f) printf(#s "." #f " %zu\n", offsetof(struct s, f))

int main(void) {
    SIZE(netnice_udp);
    FIELD(netnice_udp, local);
    FIELD(netnice_udp, remote);
    FIELD(netnice_udp, local_length);
    FIELD(netnice_udp, remote_length);
    FIELD(netnice_udp, contract);
    FIELD(netnice_udp, buffer_bytes);
    FIELD(netnice_udp, sending);
    FIELD(netnice_udp, receiving);
    FIELD(netnice_udp, hops);
    FIELD(netnice_udp, flags);
    SIZE(netnice_term);
    FIELD(netnice_term, offset);
    FIELD(netnice_term, mask);
    FIELD(netnice_term, value);
    SIZE(netnice_ip);
    FIELD(netnice_ip, local);
    FIELD(netnice_ip, remote);
    FIELD(netnice_ip, local_length);
    FIELD(netnice_ip, remote_length);
    FIELD(netnice_ip, contract);
    FIELD(netnice_ip, pattern);
    FIELD(netnice_ip, terms);
    FIELD(netnice_ip, protocol);
    FIELD(netnice_ip, buffer_bytes);
    FIELD(netnice_ip, sending);
    FIELD(netnice_ip, receiving);
    FIELD(netnice_ip, hops);
    FIELD(netnice_ip, flags);
    SIZE(netnice_ether);
    FIELD(netnice_ether, contract);
    FIELD(netnice_ether, pattern);
    FIELD(netnice_ether, terms);
    FIELD(netnice_ether, number);
    FIELD(netnice_ether, buffer_bytes);
    FIELD(netnice_ether, sending);
    FIELD(netnice_ether, receiving);
    FIELD(netnice_ether, flags);
    SIZE(netnice_notification);
    FIELD(netnice_notification, kind);
    FIELD(netnice_notification, flow);
    FIELD(netnice_notification, up);
    FIELD(netnice_notification, mtu);
    FIELD(netnice_notification, error);
    FIELD(netnice_notification, mac);
    FIELD(netnice_notification, why);
    SIZE(netnice_flow_info);
    FIELD(netnice_flow_info, local);
    FIELD(netnice_flow_info, remote);
    FIELD(netnice_flow_info, longest);
    FIELD(netnice_flow_info, under_way);
    FIELD(netnice_flow_info, no_buffer);
    FIELD(netnice_flow_info, over_share);
    FIELD(netnice_flow_info, too_long);
    FIELD(netnice_flow_info, dropped);
    FIELD(netnice_flow_info, id);
    FIELD(netnice_flow_info, contract);
    SIZE(netnice_received);
    FIELD(netnice_received, from);
    FIELD(netnice_received, bytes);
    FIELD(netnice_received, whole);
    FIELD(netnice_received, stamp);
    SIZE(netnice_buffer);
    FIELD(netnice_buffer, data);
    FIELD(netnice_buffer, length);
    FIELD(netnice_buffer, id);
    SIZE(netnice_messages);
    FIELD(netnice_messages, queued);
    FIELD(netnice_messages, waiting);
    FIELD(netnice_messages, held_back);
    FIELD(netnice_messages, dropped);
    FIELD(netnice_messages, retry_after);
    SIZE(netnice_outcome);
    FIELD(netnice_outcome, number);
    FIELD(netnice_outcome, stamp);
    FIELD(netnice_outcome, status);
    SIZE(netnice_tcp);
    FIELD(netnice_tcp, local);
    FIELD(netnice_tcp, remote);
    FIELD(netnice_tcp, local_length);
    FIELD(netnice_tcp, remote_length);
    FIELD(netnice_tcp, contract);
    FIELD(netnice_tcp, buffer_bytes);
    FIELD(netnice_tcp, sending);
    FIELD(netnice_tcp, receiving);
    FIELD(netnice_tcp, hops);
    FIELD(netnice_tcp, backlog);
    FIELD(netnice_tcp, flags);
    SIZE(netnice_tcp_info);
    FIELD(netnice_tcp_info, local);
    FIELD(netnice_tcp_info, remote);
    FIELD(netnice_tcp_info, state);
    FIELD(netnice_tcp_info, error);
    FIELD(netnice_tcp_info, held_back);
    FIELD(netnice_tcp_info, mss);
    FIELD(netnice_tcp_info, congestion_window);
    FIELD(netnice_tcp_info, threshold);
    FIELD(netnice_tcp_info, in_flight);
    FIELD(netnice_tcp_info, peer_window);
    FIELD(netnice_tcp_info, rtt);
    FIELD(netnice_tcp_info, timeout);
    FIELD(netnice_tcp_info, acknowledged);
    FIELD(netnice_tcp_info, received);
    FIELD(netnice_tcp_info, segments_sent);
    FIELD(netnice_tcp_info, segments_received);
    FIELD(netnice_tcp_info, retransmitted);
    FIELD(netnice_tcp_info, timeouts);
    SIZE(netnice_tcp_event);
    FIELD(netnice_tcp_event, number);
    FIELD(netnice_tcp_event, events);
    return 0;
}
