//! The paper NTCP, figure by figure. No call fails.

use super::{Figure, Paper};

/// The paper.
pub(super) const NTCP: Paper = Paper {
    name: "NTCP",
    title: "Scheduling TCP in the Nemesis operating system",
    authors: "Voigt, Ahlgren, 1999",
    about: "Each program has a TCP of its own, and reserves a slice of every period of the link \
            and of the processor.",
    terms: TERMS,
    figures: &[
        FIGURE_4, RATES, FIGURE_5, FIGURE_6, FIGURE_7, TABLE_1, SPEED,
    ],
};

const TERMS: &[(&str, &str)] = &[
    (
        "slice and period",
        "A reservation: so much time of the link (or of a processor) in each period, for example \
         2.4 ms in each 50 ms. A slice of s in p of a link gives s/p of its rate.",
    ),
    (
        "extra",
        "A flag of a reservation: the program also has a share of unreserved time. The paper \
         writes T with extra and F without.",
    ),
    (
        "full packet",
        "The longest packet. Here it is a frame of 1500 bytes with its Ethernet header, so that \
         it takes the paper's 1.2 ms at 10 Mbit/s and 0.12 ms at 100 Mbit/s. 1434 bytes are \
         payload.",
    ),
    (
        "on the wire, and goodput",
        "Rates in Mbit/s: on the wire with all headers; goodput is TCP's payload at the receiver.",
    ),
    (
        "window",
        "How many bytes the receiver permits beyond those that it has acknowledged. TCP stops \
         when the window is full.",
    ),
    (
        "carnage",
        "A program that uses all processor time that it is given.",
    ),
    (
        "tcp_send",
        "The paper's sender: it sends full packets as fast as it can.",
    ),
    (
        "R²",
        "How well a line fits measured points: 1 if all lie on it. No unit.",
    ),
];

const FIGURE_4: Figure = Figure {
    ids: &["ntcp-fig4", "ntcp-fig4-sim"],
    name: "Figure 4",
    setup: "One TCP connection on a link of 10 Mbit/s always has something to send. It has a \
            slice of 2.4 ms in each 50 ms and no extra time. A full packet takes 1.2 ms, so two \
            fit into the slice. A second connection has 3 ms in each 50 ms, as in the paper's \
            footnote. Each is measured for 60 s on packets, and for 1000 s in the simulator.",
    drawn: "The paper's figure is a plot of tcpdump: the sequence number against the time in s, \
            from 126.6 to 127.6 s. It has the packets as small arrows, the highest acknowledged \
            sequence number as a dotted line below them, and the window that the receiver offers \
            as a solid line above.",
    saw: "The sender transmits two packets, pauses for almost 50 ms, transmits the next two, and \
          so on. Packets are triggered by the begin of a period and not by acknowledgements. With \
          3 ms, periods with two and with three packets alternate.",
    holds: "With 2.4 ms, at least 99 % of the periods have exactly two packets. With 3 ms, every \
            period has two or three, and the mean is 2.5 within 0.02. No packet is early for its \
            slice (judged by `netnice check`), none is short or sent again, and none arrives \
            behind a missing one.",
    differs: "The sender is a process with the library's TCP (CUBIC), and the receiver is a Linux \
              kernel. Packets are frames of 1500 bytes with the Ethernet header (MTU 1486), \
              because the paper counts 1500 bytes without framing. A third connection has frames \
              of 1514 bytes (MTU 1500), which take 1.2112 ms: its mean must be within 1 % of \
              1.98, because two overdraw the slice and one period in 54 has a single frame. The \
              simulator has no TCP, and so no acknowledgements.",
};

const RATES: Figure = Figure {
    ids: &["ntcp-rate"],
    name: "Section 4: rates",
    setup: "One TCP connection on a link of 10 Mbit/s always has something to send. It has a \
            slice in each 200 ms and no extra time. Fifteen slices from 1.2 ms (one full packet) \
            to 120 ms (a hundred) are measured for 15 s each.",
    drawn: "",
    saw: "Up to 9.6 ms (8 full packets in a period) there are almost no discrepancies between the \
          measured throughput and the slice's. Above, results vary very much: the sender fills \
          the receiver's window, and the window that it offers depends on how fast it \
          acknowledges.",
    holds: "At every slice, the mean rate is within 1 % of what the slice gives, and at least 99 \
            % of the periods have exactly its packets. So the rate does not vary above 9.6 ms \
            either.",
    differs: "The series goes on to 120 ms, more than twelve times as far as the paper's steady \
              part. The receiver is a Linux kernel of today, whose window is large enough for the \
              packets of a period; the paper's was SunOS.",
};

const FIGURE_5: Figure = Figure {
    ids: &["ntcp-fig5"],
    name: "Figure 5",
    setup: "Three TCP connections on a link of 10 Mbit/s always have something to send. c1 has a \
            slice of 3.6 ms in 200 ms without extra (0.18 Mbit/s on the wire) and sends to one \
            receiver. c2 has 4.8 ms in 40 ms and extra time (1.2 Mbit/s and what is left over), \
            c3 has 24 ms in 40 ms without extra (6.0 Mbit/s); both send to a second receiver. \
            They begin at 0, 20 and 40 s, and the run ends at 60 s.",
    drawn: "The paper's figure shows the throughput of the three connections against time. Its \
            axes are lost in the text that we have. c2 begins about 3 s after c1, and c3 some \
            seconds later.",
    saw: "The paper gives c1 3.6 ms in 200 ms, c2 1.2 ms in 10 ms with extra, and c3 6 ms in 10 \
          ms. c1 steadily has about 0.17 Mbit/s. c2 has about 7.5 Mbit/s, and about 3.5 once c3 \
          has begun. c3 has only 4.2 Mbit/s of the promised 5.6, because its receiver's window is \
          often closed: acknowledgements are late and come in bursts, most likely through \
          contention on the hub of 10 Mbit/s. These are rates of payload.",
    holds: "In every second, c1 and c3 are within 2 % of what their slices give on the wire. From \
            the start of c2 on, at least 98 % of the link is used and never more than 100.1 %, \
            and c2 has at least 98 % of all that c1 and c3 leave. No packet is early for its \
            slice or sent again, and none arrives behind a missing one.",
    differs: "c2 and c3 have the paper's parts of the link in periods of 40 ms and not of 10 ms. \
              Admission refuses 10 ms: a packet can wait 3.65 ms for packets of the kernel and \
              for the one on the wire, and each slice may be overdrawn by a packet of 1.2 ms. The \
              link is a cable between two hosts in place of a hub: acknowledgements do not \
              contend with data, so c3 must have all of its slice, which is harder than what the \
              paper saw. Each stage lasts 20 s; its first second is not judged.",
};

const FIGURE_6: Figure = Figure {
    ids: &["ntcp-fig6"],
    name: "Figure 6",
    setup: "The sender, carnage and the driver share one processor. The sender has a slice of 5 \
            ms in 10 ms of a link of 100 Mbit/s and 2 ms in 10 ms of the processor, both with \
            extra. Carnage has 0 to 72 % of the processor in periods of 20 ms without extra, in \
            steps of 8 %, measured for 5 s each. Before each full packet the sender computes for \
            200 us, as if it made its data.",
    drawn: "The paper's figure shows the throughput of the sender against the part of the \
            processor that carnage has, up to 72 %. Its axes are lost in the text that we have.",
    saw: "Alone, the sender has about 53 Mbit/s. Throughput falls in proportion to the part of \
          the processor that carnage uses. The paper stops at 72 % and not at 80 %, because \
          device drivers and other domains need processor time too.",
    holds: "A line fits the rates (R² at least 0.98). No rate is below what 20 % of the processor \
            carries without extra. Carnage has the part that it has reserved within 3 %. The \
            series must reach 48 %.",
    differs: "The series ends where admission refuses carnage, usually before the paper's 72 %; a \
              note below says where. The kernel grants less than all of a processor to \
              reservations (90 % from Linux 6.12 on), the sender has 20 %, and the driver has a \
              reservation of its own that follows its use. How much is left depends on the \
              machine, so the bound is 48 %, two thirds of the paper's range. The computing of \
              200 us stands for the paper's processor of 200 MHz: TCP alone needs some percent of \
              today's processor for 100 Mbit/s. It permits at most 60 Mbit/s of a whole \
              processor, and less with the time of TCP and the driver, so rates are of the order \
              of the paper's 53 Mbit/s. Beside the paper's series, the chart has the sender \
              without a reservation beside 1, 3 and 15 threads of carnage.",
};

const FIGURE_7: Figure = Figure {
    ids: &["ntcp-fig7"],
    name: "Figure 7",
    setup: "The sender, carnage and the driver share one processor. The sender has a slice of the \
            link of 110 us in each 1 ms, or two to six times that, without extra; the link has 1 \
            Gbit/s, so these are 110 to 660 Mbit/s. Carnage has all the rest of the processor. A \
            search by halves finds the least reservation of the processor, in periods of 10 ms, \
            with which the sender sends 99 % of its slice; the median of three searches counts.",
    drawn: "The paper's figure shows the part of the processor that tcp_send must reserve, in \
            percent, against the throughput that it wants, in Mbit/s on a link of 100 Mbit/s.",
    saw: "The part of the processor that is needed rises linearly with the rate: 10 % for 10 \
          Mbit/s and 5 % for 5 Mbit/s, which is 1 % for each Mbit/s.",
    holds: "A line fits the least reservations by the rate (R² at least 0.99). Without carnage \
            beside it, the sender sends at least 99 % of each slice.",
    differs: "The paper's rates are around 5 and 10 Mbit/s on a link of 100 Mbit/s, with a \
              processor of 200 MHz. Today's processor needs too little for such rates to be \
              measured, so ours are 110 to 660 Mbit/s of 1 Gbit/s, without any computing of the \
              sender besides TCP. At more, the driver needs the whole processor. The reservation \
              is the sender's alone: the driver has one of its own, and its time is not in the \
              values, as that of the paper's driver domain is not. \"The sender's use without \
              carnage\" can be higher than the least reservation; a note below has the supposed \
              cause. With nothing reserved, the kernel gives the sender its share beside 15 \
              threads of carnage, which is enough for the lower rates; for these the search finds \
              what a reservation must be, and not that one is needed.",
};

const TABLE_1: Figure = Figure {
    ids: &["ntcp-tab1"],
    name: "Table 1",
    setup: "Three senders, carnage and the driver share one processor. On a link of 100 Mbit/s, \
            s1 has 220 us in 2 ms, s2 440 us in 4 ms and s3 220 us in 4 ms. Of the processor, s1 \
            has 1 ms in 10 ms, s2 2 ms in 20 ms and s3 1 ms in 20 ms, all without extra. The aims \
            are 10, 10 and 5 Mbit/s. Carnage has extra, the nice value -20 and all the rest of \
            the processor. Before each full packet a sender computes for 90 us, as if it made its \
            data.",
    drawn: "",
    saw: "s1, s2 and s3 have 10.1, 10.1 and 5.1 Mbit/s. Their slices of the link are 110 us in 1 \
          ms, 220 us in 2 ms and 110 us in 2 ms, and those of the processor are ours.",
    holds: "The goodput of each sender is at its aim or above, and its rate on the wire is within \
            1 % of what its slice of the link allows (11, 11 and 5.5 Mbit/s).",
    differs: "The slices of the link are the paper's parts in twice its periods. Admission \
              refuses those of 1 ms at 100 Mbit/s: a packet can wait 0.38 ms for packets of the \
              kernel and for the one on the wire, and each slice may be overdrawn by a packet of \
              0.12 ms. The computing of 90 us stands for the paper's processor: with it, a tenth \
              of a processor carries about 11 Mbit/s. \"Link alone\" is a second measurement with \
              the slices of the link and without reservations of the processor: it shows that \
              both are needed.",
};

const SPEED: Figure = Figure {
    ids: &["ntcp-raw"],
    name: "Section 4: speed",
    setup: "One TCP connection between two hosts sends as fast as it can for 3 s, in 9 rounds: \
            from the program's own TCP through the driver, and from the kernel's TCP to the \
            kernel's without netnice. The managed link has 100 Gbit/s, so that its schedule \
            delays no packet. Both are measured with segmentation, receive offload and check sums \
            of the interface off at both ends, and with all of them on.",
    drawn: "",
    saw: "Between two Pentiums of 200 MHz on Ethernet of 100 Mbit/s, the TCP of Nemesis sends \
          more than 58 Mbit/s to a machine with Linux, and Linux 81 Mbit/s to Linux: 0.72 of it.",
    holds: "The median goodput of sending is at least 0.9 of the kernel's with offloads off, and \
            at least 0.7 with all of them on. With offloads off, receiving is at least 0.9 of the \
            kernel's. 64 connections to one listener have at least 0.9 of the goodput of one.",
    differs: "Both hosts are on one machine, so the program, the driver and the peer share its \
              processors; the processor time of each is shown. Offloads did not exist in the \
              paper. Receiving and many connections are bounds of our own. Two yardsticks, the \
              same TCP in one thread on the bare card, show what the driver process costs; they \
              are not judged.",
};
