//! The paper RTC, figure by figure. No call fails.

use super::{Figure, Paper};

/// The paper.
pub(super) const RTC: Paper = Paper {
    name: "RTC",
    title: "Structuring communication software for quality-of-service guarantees",
    authors: "Mehra, Indiresan, Shin, 1996",
    about: "A host sends messages with deadlines. A channel is admitted only if the processor and \
            the link can keep its deadlines, and the protocol processing is scheduled like the \
            link. All figures have three channels (0 and 1 send bursts, 2 is periodic) and best \
            effort.",
    terms: &[
        (
            "Mmax, Rmax, Bmax",
            "The contract of a channel: the length of its largest message in bytes, its highest \
             long-term rate in messages per second, and its largest burst in messages.",
        ),
        (
            "logical arrival",
            "The time at which a message counts as arrived: its arrival, or 1/Rmax after the \
             logical arrival of the message before it, whichever is later. Until then the message \
             is early. The deadline counts from there.",
        ),
        (
            "laxity",
            "The deadline of a message less the time at which its last packet left, in ms. It is \
             negative for a late message.",
        ),
        (
            "handler",
            "The thread or task that cuts the messages of one channel into packets and gives them \
             to the link.",
        ),
        (
            "preemption point, P",
            "A handler that runs is interrupted only after each block of P packets. There it \
             yields the processor to a handler with an earlier deadline.",
        ),
        (
            "block",
            "The P packets, in number, between two preemption points.",
        ),
        (
            "best effort",
            "Traffic without a contract. It has the time that channels leave, and loses messages \
             when its queue is full.",
        ),
        (
            "offered load",
            "What a program tries to send, in kB/s (1,000 bytes per second). Throughput is what \
             left.",
        ),
    ],
    figures: &[FIGURE_5, FIGURE_6, FIGURE_7A, FIGURE_7B, SECTION_3_3],
};

const FIGURE_5: Figure = Figure {
    ids: &["rtc-fig5", "rtc-fig5-sim"],
    name: "Figure 5",
    setup: "Three channels send exactly what their contracts allow: 0 sends 60 KiB 15 times a \
            second in bursts of 4, 1 sends 40 KiB 15 times a second in bursts of 6, 2 sends 30 \
            KiB 20 times a second. Best effort offers messages of 16,384 bytes at eleven loads \
            from 200 to 14,400 kB/s, past saturation, with a queue of 64 messages. Deadlines are \
            60, 56 and 50 ms on packets and 40, 30 and 20 ms simulated. Each load runs for 40 s \
            on packets and 60 s simulated.",
    drawn: "Two panels over the load that best effort offers, in kB/s. 5a: throughput in kB/s of \
            each channel and of best effort. 5b: message laxity in ms, the mean and the least of \
            each channel. The plain text of the paper lost the ranges and the curves.",
    saw: "Each channel has the throughput of its contract and loses no packet. The throughput of \
          best effort rises with its load until the processor is saturated, then declines \
          slightly. No message misses its deadline, for the least laxity is not negative. The \
          mean laxity hardly depends on the load of best effort.",
    holds: "No message that respects its contract is late or dropped at any load. The mean laxity \
            of a channel changes by at most 5 % over all loads. Best effort gets at least 98 % of \
            its offered load before saturation, and at least 95 % of its peak throughput after \
            it.",
    differs: "The paper's table 3 with the contracts is lost in its plain text, so all sizes, \
              rates, bursts and deadlines are ours. On packets a packet has 1,440 bytes in place \
              of 4 KiB and a block has 12 packets in place of 4, so that a block has about as \
              many bytes; each packet is processed for 115 µs, about the paper's time per byte. \
              The handlers run on a reservation of 8.5 ms in every 10 ms of a processor, which \
              may give its time late, so the deadlines are longer than in the simulation. The \
              paper sends 32K packets in a run and ignores the first and the last 2K; our runs \
              have more packets at every load, and none is ignored. A late message is excused by \
              a recorded stop of the driver or of the handlers' thread, for at most 1 message in \
              1,000. A message that its program, running late, sends sooner than its contract \
              permits may be refused; such messages have a column of their own and do not count \
              as dropped. The paper emulates its network adapter; ours is a virtual cable of 160 \
              Mbit/s.",
};

const FIGURE_6: Figure = Figure {
    ids: &["rtc-fig6", "rtc-fig6-sim"],
    name: "Figure 6",
    setup: "The same three channels as in figure 5 (60, 40 and 30 KiB; 15, 15 and 20 messages a \
            second; deadlines 60, 56 and 50 ms on packets, 40, 30 and 20 ms simulated). Channel 0 \
            sends at 1 to 6 times the rate of its contract, 922 to 5,530 kB/s, and its excess is \
            to be dropped. Best effort offers 1,900 kB/s. Each rate runs for 40 s on packets and \
            60 s simulated.",
    drawn: "Two panels over the load that channel 0 offers, in kB/s. 6a: throughput in kB/s of \
            each channel and of best effort. 6b: number of packets dropped of each. The plain \
            text of the paper lost the curves and most of the ticks.",
    saw: "Channels 1 and 2 and best effort (1,900 kB/s) get what they expect and lose no packet. \
          Channel 0 gets its contract and drops the excess. No packet misses its deadline, also \
          of channel 0.",
    holds: "No message is late. Only channel 0 drops messages, and none at the rate of its \
            contract; at 6 times that rate some are dropped. Channel 0 always gets at least 99 % \
            of what it gets when it keeps to its contract.",
    differs: "The contracts are ours, because the paper's table 3 is lost. Packets, blocks, \
              reservation, excuses and the length of runs are those of figure 5: 1,440 bytes, 12 \
              packets, 8.5 ms in every 10 ms, at most 1 excused message in 1,000, no packet \
              ignored. The paper counts dropped packets; we count dropped messages, because a \
              message is dropped as a whole. The x axis also names the multiple of Rmax.",
};

const FIGURE_7A: Figure = Figure {
    ids: &["rtc-fig7a"],
    name: "Figure 7a",
    setup: "The channels have the sizes and rates of figure 5 and shorter deadlines: 25, 17 and \
            10 ms. Best effort sends messages of 101,376 bytes, 72 packets, which are processed \
            without preemption points (P = 72), and for comparison with a point after every 12 \
            packets. It offers 14,400 kB/s with queues of 2, 8 and 32 messages (40 s each), and \
            with the queue of 32 also 800, 2,400, 4,800 and 7,200 kB/s (12 s each). The link has \
            1 Gbit/s; the handlers have no reservation.",
    drawn: "Deadline misses and packets dropped of each flow over the load that best effort \
            offers. The plain text of the paper lost the axes and the curves.",
    saw: "Messages are late and packets are dropped even at low loads of best effort. Both \
          increase with the load until the capacity is reached. Then the excess of best effort is \
          dropped, and drops and misses of the channels decline. Which channel suffers cannot be \
          predicted. A longer queue of best effort makes it worse.",
    holds: "Without preemption points messages are late at every load and with every length of \
            the queue. With a point after every 12 packets none is.",
    differs: "This is another set-up than figure 5's: shorter deadlines, longer messages of best \
              effort, a faster link, and no reservation, because admission would refuse these \
              deadlines with one. The contracts are ours. Three things that the paper saw are not \
              reproduced or not required. The channels drop no message here, because their queues \
              have room for all that their contracts allow. Misses need not decline beyond the \
              capacity. A longer queue need not make it worse: the paper's handler keeps the \
              processor for all messages in its queue, and ours for one message. At most 1 late \
              message in 1,000 is excused by recorded stops. A run of 12 s at 800 kB/s has some \
              25,000 packets, fewer than the paper's 32K; all other runs have more. None is \
              ignored.",
};

const FIGURE_7B: Figure = Figure {
    ids: &["rtc-fig7b", "rtc-fig7b-sim"],
    name: "Figure 7b",
    setup: "Early messages are processed before best effort, and a handler yields between \
            messages only. On packets channel 0 sends 100 KiB 8 times a second in bursts of 2, \
            channels 1 and 2 send as in figure 5, best effort offers 4,800 kB/s with a queue of 8 \
            messages, and each of four cases runs for 40 s: P = 73 (message boundaries), early \
            first; P = 12, early first; P = 12, early after best effort (as shipped); and the \
            last once more with a reservation. Deadlines are 25, 17 and 8 ms, and 80, 76 and 70 \
            ms in the case with a reservation. The simulation has the channels of figure 5 with \
            deadlines of 25, 15 and 8 ms, P = 15 (message boundaries) and P = 4, and loads from \
            200 to 14,400 kB/s, 60 s each.",
    drawn: "Deadline misses and packets dropped of each flow over the load that best effort \
            offers. The plain text of the paper lost the axes and the curves.",
    saw: "Channels have significant deadline misses and packet drops. Best effort gets less, \
          because early real-time messages are processed before it. It becomes worse when a \
          handler drains its queue each time that it runs.",
    holds: "Messages are late when they are interrupted at message boundaries only. With \
            preemption points none is late, whether early messages come first or not. Best effort \
            gets more as shipped (P = 12 or 4, early messages after it): on packets it drops at \
            most 90 % of the messages that it drops in the first case, and in the simulation the \
            first case has at most 99 % of its throughput at 4,800 kB/s.",
    differs: "The contracts are ours. A case with a reservation is only possible with far longer \
              deadlines (70 to 80 ms in place of 8 to 25 ms), because admission refuses the short \
              ones; it shows what is granted is kept, and cannot be compared with the others. \
              Without a reservation the handlers share two processors with the programs that fill \
              and check messages and with two drivers. A block never spans two messages, so the \
              longest piece that is not interrupted is one message. Channels drop no message, \
              because their queues have room for all that their contracts allow. At most 1 late \
              message in 1,000 is excused by recorded stops. Packets have 1,440 bytes, and the \
              link has 1 Gbit/s.",
};

const SECTION_3_3: Figure = Figure {
    ids: &["rtc-p"],
    name: "Section 3.3",
    setup: "Two quantities are varied: P, the packets between two preemption points (1 to 32), \
            and the size of a packet (512 to 16,384 bytes, or 128 to 1,472 on this machine). For \
            each value, admission says how many identical channels fit, and four channels of best \
            effort that always have something to send show the throughput. Both are done with the \
            paper's costs (table 1: 420 µs for the first packet of a message, 170 µs for a later \
            one, 160 µs to schedule each on the link, 90 µs for a cache miss) and with the costs \
            of this machine, measured anew in each run.",
    drawn: "",
    saw: "The paper has no figure here. P is chosen for the most admitted channels at a \
          reasonable throughput, and the packet size for the least transmission time at a \
          reasonable throughput. The transmission time is a fixed cost (40 µs) and the size \
          divided by the smaller of the bandwidths of link and memory (50 ns for each byte, 16 \
          MB/s in effect with 4 KiB). Table 1 has P = 4 and 4 KiB.",
    holds: "Both curves are measured on this machine. The defaults (P = 4 and 1,452 bytes) have \
            at least 95 % of the best throughput and at least 95 % of the channels of the value \
            that our rule chooses: the most channels among the values with at least 95 % of the \
            best throughput, and of equals the smaller.",
    differs: "The paper gives no number for a reasonable throughput; ours is 95 % of the best. \
              With it the rule need not choose P = 4 and 4 KiB on the paper's own costs: a note \
              of the run says which values it chooses and what the paper's values have. The \
              paper's choice of the size also asks for a short transmission time, which our rule \
              counts only through the channels that are admitted. Four tables are not comparable \
              with each other in ns for each byte: P at the paper's costs is measured with \
              packets of 1,452 bytes that take the paper's time for each packet, on 7 ms of every \
              10 ms of a processor, while its channels are counted with packets of 4,096 bytes; \
              the size at the paper's costs is simulated with P = 4 on a whole processor; on this \
              machine P has packets of 1,452 bytes, the size has P = 4, and both run encrypted on \
              1 ms of every 10 ms. 1,452 bytes is shipped because it fits an MTU of 1,500 over \
              IPv6 too; 1,472 bytes fits IPv4 only. The contract of the channels that are counted \
              is ours.",
};
