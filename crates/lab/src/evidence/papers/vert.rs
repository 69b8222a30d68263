//! The paper VERT, figure by figure. No call fails.

use super::{Figure, Paper};

/// The paper.
pub(super) const VERT: Paper = Paper {
    name: "VERT",
    title: "Protocol implementation in a vertically structured operating system",
    authors: "Black, Barham, Donnelly, Stratford, 1997",
    about: "Protocols run in the programs and not in the kernel or in servers, and a driver \
            process schedules each packet of each program by its guarantee. So no program \
            disturbs another one.",
    terms: &[
        (
            "slice",
            "A time s of the link in each period p, both in ms. A program with a slice of 4 ms in \
             100 ms may use a link of 100 Mbit/s for 4 ms of each 100 ms, which is 4 Mbit/s.",
        ),
        (
            "s/p",
            "The slice divided by the period: the share of the link that a slice promises. In \
             bins of 200 ms we give it as a number of packets.",
        ),
        (
            "packet time",
            "The time of a packet on the link, in us. As in the papers a packet of 1500 bytes \
             takes exactly 120 us at 100 Mbit/s, without framing.",
        ),
        (
            "slack, or extra",
            "Time of the link that no slice uses. A sender with extra may use it; a sender with a \
             slice alone may not.",
        ),
        (
            "bin",
            "A span of 200 ms, which is two periods. A rate in a bin is the number of its \
             packets, in Mbit/s.",
        ),
        (
            "work-ahead",
            "How far the driver gives packets to the network card ahead of time: 1 ms. It sleeps \
             until a fifth of that is used up, so a stop of up to 0.8 ms costs the link nothing.",
        ),
        (
            "coefficient of variation",
            "The standard deviation of the rates in all bins, divided by their mean, in %. A \
             smaller one means a steadier rate.",
        ),
    ],
    figures: &[
        Figure {
            ids: &["vert-fig5a", "vert-fig5a-sim"],
            name: "Figure 5a",
            setup: "Six programs send UDP packets of 1500 bytes as fast as they may on a link of \
                    100 Mbit/s. They have slices of 4, 8, 12, 16, 20 and 24 ms of each 100 ms and \
                    no extra, so 84 Mbit/s in all. Meanwhile the other host sends a ping each 7 \
                    ms. A run lasts 60 s.",
            drawn: "The rate of each of the six streams, averaged over 200 ms, against time. The \
                    picture is not in our text of the paper, so the ranges of its axes are not \
                    known.",
            saw: "Each stream is stable over the whole experiment, at a rate in proportion to its \
                  slice: 4 to 24 Mbit/s, 84 Mbit/s in all. The machine answered ICMP in a timely \
                  manner.",
            holds: "In each bin of 200 ms a sender has its share s/p within 2 packets, and over \
                    the run within 0.5 %. Each packet that was sent arrives. Of the pings at most \
                    1 % are unanswered, and the 99th percentile of their round trips is at most 5 \
                    ms. In the simulation this is the time for which a ping of 98 bytes waits for \
                    the link.",
            differs: "The paper gives no tolerance for the rates and no times of pings: these \
                      bounds are ours. Bins begin 8 ms before a period of the slice, so that \
                      packets at the edge of a period stay in one bin; they are counted from 1 s \
                      after a sender's first packet. Packets that are missing in a bin, or too \
                      many in the next one, are excused as far as recorded stops of the driver \
                      explain them. In the simulation a minimum of 200 kbit/s guarantees the \
                      ping, since slices are served before traffic without a guarantee.",
        },
        Figure {
            ids: &["vert-fig5b", "vert-fig5b-sim"],
            name: "Figure 5b",
            setup: "One program sends UDP packets of 1500 bytes with the extra time of a link of \
                    100 Mbit/s. Then four more programs start at intervals of 5 s, with slices of \
                    6, 7, 8 and 9 ms of each 100 ms and no extra. A stage lasts from one start to \
                    the next one (stage 0: the first program alone; stages 4 and 5: all five). A \
                    run has six stages, 30 s.",
            drawn: "The rate of each of the five streams, averaged over 200 ms, against time in \
                    s. The picture is not in our text of the paper, so the ranges of its axes are \
                    not known.",
            saw: "The first stream begins at the full rate of the link and falls with each start. \
                  The others have 6, 7, 8 and 9 Mbit/s and are unaffected by it.",
            holds: "In each bin of 200 ms a sender with a slice has its share s/p within 2 \
                    packets, and on packets over the run within 0.5 %. In each stage the first \
                    sender has exactly the rest of the link (100, 94, 87, 79 and 70 %) within 0.5 \
                    %. In the simulation the link is busy for at least 99.9 % of the time.",
            differs: "The paper gives no tolerance: these bounds are ours. On packets the first \
                      sender has a slice of 1 ms and extra, where the paper's has no guarantee, \
                      and a stage is judged from 200 ms after its start, since a process takes \
                      some time to start. What recorded stops of the driver took from the link \
                      beyond the work-ahead counts as used by the first sender. Bins begin 8 ms \
                      before a period of the slice.",
        },
        Figure {
            ids: &["vert-fig6"],
            name: "Figure 6",
            setup: "Two programs send UDP packets of 1500 bytes as fast as they can, without any \
                    guarantee, for 30 s; 29 s are judged. The paper's comparison, driver against \
                    plain queue of the kernel, is made over a cable that carries 100 Mbit/s. A \
                    second pair compares the driver with HTB, the kernel's shaper, on a faster \
                    cable where each of them shapes the link to 100 Mbit/s.",
            drawn: "The rates of the streams over time, on Nemesis in the left trace and on Linux \
                    2.0.29 in the right trace. The picture is not in our text of the paper, so \
                    the ranges of its axes are not known.",
            saw: "The average bandwidth was 46.1 Mbit/s on Nemesis and 44.1 Mbit/s on Linux, and \
                  Nemesis was very much smoother. The paper does not tell whether this is the \
                  average of each stream.",
            holds: "The total rate through the driver is at least that of the kernel, both over \
                    the cable and beside HTB. The rate of the less steady sender varies no more \
                    from 200 ms to 200 ms than that of the kernel's, in both comparisons.",
            differs: "What stops of the driver took from the link beyond its work-ahead of 1 ms \
                      is added to its total rate, and shown. The kernel's queue has no such \
                      excuse. The kernel's senders use ordinary sockets, and the driver's senders \
                      use the library of netnice.",
        },
        Figure {
            ids: &["vert-fig7"],
            name: "Figure 7",
            setup: "Two programs receive UDP packets of 1500 bytes, the first 40 Mbit/s and the \
                    second 45 Mbit/s, through the driver of one link of 1 Gbit/s. The first drops \
                    each packet at once. The second burns processor time for each packet: none at \
                    first, and 80 us more after every 20,000 packets that it received. It is sent \
                    140,000 packets, which takes about 37 s, and each program has 1,024 buffers, \
                    enough for 0.3 s.",
            drawn: "Three curves against time: `no-processing`, the Ethernet bandwidth that the \
                    first program receives; `processing`, that of the second; and `loss`, the \
                    packets that the driver dropped. The picture is not in our text of the paper, \
                    so the ranges of its axes are not known.",
            saw: "Each time the second program slows down, its curve drops and the loss rises by \
                  the same amount. The first program receives 40 Mbit/s, completely unperturbed.",
            holds: "The first program loses no packet. Of each program, what was sent was \
                    received or counted as lost by the driver, and the kernel loses no frame \
                    before the driver. As a control the second program must lose packets: of its \
                    packets at least 5 percentage points more in the last third of the run than \
                    in the first.",
            differs: "The paper does not give the work on a packet or the number of buffers: \
                      these are ours. The sender is the kernel of the other host; the paper's is \
                      a second Nemesis machine. Losses of the second program while it waited for \
                      a processor do not count as caused by its work. A loss of the first program \
                      is excused only if it waited for a processor longer than its buffers last, \
                      and one of the kernel only by stops of the driver of 100 ms and more. The \
                      rates of each stage are shown and not judged.",
        },
    ],
};
