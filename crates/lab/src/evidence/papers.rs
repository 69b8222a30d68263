//! What the five papers did and saw, figure by figure, and what must hold for us. [`PAPERS`] has
//! them in the order of the page; no call fails. The numbers here are the papers' and those of our
//! promises. What was measured comes from the files of runs.

/// A paper, with the figures that are repeated.
pub(super) struct Paper {
    /// The short name.
    pub name: &'static str,
    pub title: &'static str,
    pub authors: &'static str,
    /// Its subject, in one or two sentences.
    pub about: &'static str,
    pub figures: &'static [Figure],
}

/// A figure, a table or a claim of a paper.
pub(super) struct Figure {
    /// The experiments that repeat it: on packets, and simulated where there are two.
    pub ids: &'static [&'static str],
    pub name: &'static str,
    /// What is set up.
    pub setup: &'static str,
    /// What the paper saw.
    pub saw: &'static str,
    /// What must hold for us.
    pub holds: &'static str,
}

/// Whether a figure of a paper has the experiment.
pub(super) fn have(id: &str) -> bool {
    let figures = PAPERS.iter().flat_map(|paper| paper.figures);
    figures.into_iter().any(|figure| figure.ids.contains(&id))
}

/// The papers.
pub(super) const PAPERS: &[Paper] = &[
    Paper {
        name: "NICE",
        title: "netnice: nice is not only for CPUs",
        authors: "Okumura, Moir, Mossé, 2000",
        about: "A limit for what a program, its children and all their connections send and \
                receive, set as easily as nice(1) sets a priority.",
        figures: &[
            Figure {
                ids: &["nice-tab1"],
                name: "Table 1",
                setup: "A program without a limit transfers a file of 45 Mbyte over loopback, with \
                        and without netnice; another program has a limit, so all filters are in place.",
                saw: "13.94 Mbyte/s against 13.65: no difference.",
                holds: "The ratio is at least 0.99.",
            },
            Figure {
                ids: &["nice-fig3"],
                name: "Figure 3",
                setup: "A TCP sender is limited to 512 Kbyte/s after 10 s, while it runs.",
                saw: "Its output follows the limit.",
                holds: "From 200 ms on, the rate over any second is within 1 % of the limit.",
            },
            Figure {
                ids: &["nice-fig4"],
                name: "Figure 4",
                setup: "A TCP receiver is limited to 512 Kbyte/s after 10 s, while it runs.",
                saw: "Its input follows, with more variation.",
                holds: "From 1 s on, within 2 % of the limit, and each second within 3 %.",
            },
            Figure {
                ids: &["nice-fig5"],
                name: "Figure 5",
                setup: "Three FTP sessions under a super-server that has 512 Kbyte/s in all. They \
                        begin at 0, 10 and 20 s, and each lasts 30 s.",
                saw: "The sessions have everything, halves, thirds, halves, everything.",
                holds: "From 500 ms after each change, each share is within 3 % and the total within 1 %.",
            },
            Figure {
                ids: &["nice-fig6"],
                name: "Figure 6",
                setup: "A user types to a server that sends two files under 512 Kbyte/s in all, all \
                        on one segment of 10 Mbit/s. Ten runs.",
                saw: "A key stroke takes 23.05 ms without netnice (deviation 31.72), 0.49 ms with it (0.97).",
                holds: "With netnice, the mean is at most 0.6 ms beyond that of an idle wire, and the \
                        99th percentile at most one full packet.",
            },
            Figure {
                ids: &["nice-fig7"],
                name: "Figure 7",
                setup: "The same, but the user types to another server on the segment.",
                saw: "9.19 ms without (16.75), 0.37 ms with (0.45).",
                holds: "As figure 6.",
            },
            Figure {
                ids: &["nice-fig8"],
                name: "Figure 8",
                setup: "Both servers are on a switch at 100 Mbit/s, all clients behind one port of 10 Mbit/s.",
                saw: "49.16 ms without (204.5), 0.48 ms with (1.35).",
                holds: "As figure 6.",
            },
        ],
    },
    Paper {
        name: "NTCP",
        title: "Scheduling TCP in the Nemesis operating system",
        authors: "Voigt, Ahlgren, 1999",
        about: "Each program has a TCP of its own, and reserves a slice of every period of the link \
                and of the processor.",
        figures: &[
            Figure {
                ids: &["ntcp-fig4", "ntcp-fig4-sim"],
                name: "Figure 4",
                setup: "One connection with a slice of 2.4 ms in each 50 ms of a link of 10 Mbit/s, \
                        and none of what others leave. A full packet takes 1.2 ms.",
                saw: "Two full packets in each period, then silence. Packets leave by periods and not \
                      by acknowledgements.",
                holds: "Exactly two packets in at least 99 % of the periods. With 3 ms, two or three, \
                        2.5 on average (within 0.02).",
            },
            Figure {
                ids: &["ntcp-rate"],
                name: "Section 4: rates",
                setup: "The same with slices from 1.2 ms to 120 ms of every 200 ms.",
                saw: "What the slice gives up to 9.6 ms; beyond, the rate varies.",
                holds: "Within 1 % of what the slice gives, at every slice.",
            },
            Figure {
                ids: &["ntcp-fig5"],
                name: "Figure 5",
                setup: "Three connections come one by one: c1 with a slice, c2 with a slice and what \
                        others leave, c3 with a slice.",
                saw: "c1 steady at 0.17 Mbit/s; c2 7.5, then 3.5; c3 4.2 in place of 5.6.",
                holds: "c1 and c3 within 2 % of their slices at all times, c2 has all of the rest, and \
                        the link is used to 98 % at least.",
            },
            Figure {
                ids: &["ntcp-fig6"],
                name: "Figure 6",
                setup: "A sender with a fifth of a processor and what others leave, beside a program \
                        that computes for 0 to 72 % of it.",
                saw: "Throughput falls in proportion, from 53 Mbit/s.",
                holds: "A line fits (R² at least 0.98), and the rate is never below what a fifth of \
                        the processor carries.",
            },
            Figure {
                ids: &["ntcp-fig7"],
                name: "Figure 7",
                setup: "The part of a processor that a rate needs, for many rates.",
                saw: "Linear: 10 % for 10 Mbit/s, 5 % for 5.",
                holds: "A line fits (R² at least 0.99).",
            },
            Figure {
                ids: &["ntcp-tab1"],
                name: "Table 1",
                setup: "Three senders with slices of link and processor for 10, 10 and 5 Mbit/s, and a \
                        program that computes in all of the rest.",
                saw: "10.1, 10.1 and 5.1 Mbit/s.",
                holds: "Each at its aim or above, and within 1 % of what its slice permits.",
            },
            Figure {
                ids: &["ntcp-raw"],
                name: "Section 4: speed",
                setup: "A program's own TCP against the kernel's, on one machine.",
                saw: "58 against 81 Mbit/s: 0.72.",
                holds: "At least 0.9 of the kernel's with offloads off, and 0.7 with all of them on.",
            },
        ],
    },
    Paper {
        name: "VERT",
        title: "Protocol implementation in a vertically structured operating system",
        authors: "Black, Barham, Donnelly, Stratford, 1997",
        about: "Protocols run in the programs, and a driver process schedules every packet, so \
                that no program disturbs another.",
        figures: &[
            Figure {
                ids: &["vert-fig5a", "vert-fig5a-sim"],
                name: "Figure 5a",
                setup: "Six UDP senders with slices of 4 to 24 ms of each 100 ms on a link of \
                        100 Mbit/s. A ping is answered meanwhile.",
                saw: "Each has its share, stable.",
                holds: "In each 200 ms within two packets of its share, on average within 0.5 %; the \
                        99th percentile of the ping is at most 5 ms.",
            },
            Figure {
                ids: &["vert-fig5b", "vert-fig5b-sim"],
                name: "Figure 5b",
                setup: "One sender that has only what others leave; then four with slices of 6 to 9 ms \
                        of each 100 ms, one by one.",
                saw: "The first drops step by step, the others hold.",
                holds: "Slices as in figure 5a; the first has exactly the rest.",
            },
            Figure {
                ids: &["vert-fig6"],
                name: "Figure 6",
                setup: "Two UDP senders without any promise, through our driver and through the \
                        kernel's queue.",
                saw: "46.1 against 44.1 Mbit/s, and smoother.",
                holds: "At least the kernel's rate, with less variation from 200 ms to 200 ms.",
            },
            Figure {
                ids: &["vert-fig7"],
                name: "Figure 7",
                setup: "Two programs receive 40 and 45 Mbit/s. The second one slows down every 20,000 \
                        packets.",
                saw: "Its losses rise, and the first is undisturbed.",
                holds: "The first loses nothing, every loss is counted to the second, and what was \
                        sent was received or counted.",
            },
        ],
    },
    Paper {
        name: "CELL",
        title: "Feasibility of a software-based ATM cell-level scheduler with advanced shaping",
        authors: "Schiller, Gunningberg, 1998",
        about: "65,536 connections and more, each shaped cell by cell to a contract of its own, with \
                priorities and proportional sharing under overload.",
        figures: &[
            Figure {
                ids: &["cell-fig3", "cell-fig3-sim"],
                name: "Figure 3",
                setup: "Ten connections with constant rates, single and dual buckets on one link.",
                saw: "Straight lines, with small deviations where connections meet.",
                holds: "Each passes a policer of its own without a violation, and none loses rate to \
                        another.",
            },
            Figure {
                ids: &["cell-fig4", "cell-fig4-sim"],
                name: "Figure 4",
                setup: "Three priorities. In the middle one, three connections that want the whole \
                        link come one by one.",
                saw: "The highest priority is undisturbed, equal connections have equal slopes, the \
                      lowest gets nothing.",
                holds: "Equal connections within 2 %; unequal ones keep the ratio of what they asked; \
                        the highest priority's slope does not change, and a minimum of the lowest is kept.",
            },
            Figure {
                ids: &["cell-fig5"],
                name: "Figure 5",
                setup: "More than 64,000 connections with 5 PDUs each, all started in one instant.",
                saw: "About 600 cycles a cell, 650 at worst; overload adds delay and no cycles.",
                holds: "The worst round takes at most 1.2 times the median, also at 150 % of the link, \
                        and nothing is dropped.",
            },
            Figure {
                ids: &["cell-fig6"],
                name: "Figure 6",
                setup: "1, 100 and 1,000 connections; ours up to 1,048,576.",
                saw: "160, less than 300 and less than 350 cycles a cell; shaping alone less than 85.",
                holds: "At most the paper's cycles.",
            },
            Figure {
                ids: &["cell-dma"],
                name: "Section 4.4",
                setup: "Cells are fetched from the host's memory just in time, over a bus whose delay \
                        varies (simulated).",
                saw: "Claimed, and not measured.",
                holds: "No cell comes too late, buffers are bounded, and the host is told when all \
                        PDUs are sent.",
            },
        ],
    },
    Paper {
        name: "RTC",
        title: "Structuring communication software for quality-of-service guarantees",
        authors: "Mehra, Indiresan, Shin, 1996",
        about: "Messages with deadlines: a channel is admitted only if it fits, and the protocol \
                processing is scheduled like the link. Three channels (0 and 1 send bursts, 2 is \
                periodic) and best effort.",
        figures: &[
            Figure {
                ids: &["rtc-fig5", "rtc-fig5-sim"],
                name: "Figure 5",
                setup: "Best effort offers more and more beside the channels, past saturation.",
                saw: "Channels have their throughput, no deadline is missed, the laxity stays; best \
                      effort saturates.",
                holds: "Nothing of a channel is late or dropped at any load, the mean laxity stays \
                        within 5 %, best effort has 98 % of what it offers until saturation and 95 % of its \
                        peak after.",
            },
            Figure {
                ids: &["rtc-fig6", "rtc-fig6-sim"],
                name: "Figure 6",
                setup: "Channel 0 sends at multiples of its contract.",
                saw: "Only channel 0 overflows, and what conforms of it is in time.",
                holds: "Nothing is late anywhere, and nothing is dropped but what channel 0 sends too much.",
            },
            Figure {
                ids: &["rtc-fig7a"],
                name: "Figure 7a",
                setup: "Processing of best effort without preemption points.",
                saw: "Messages are late and dropped.",
                holds: "The same set-up shows late messages; with preemption points none.",
            },
            Figure {
                ids: &["rtc-fig7b", "rtc-fig7b-sim"],
                name: "Figure 7b",
                setup: "Early messages come before best effort, and handlers yield between messages only.",
                saw: "Messages are late and dropped, best effort has less.",
                holds: "The same set-up shows late messages; with preemption points none.",
            },
            Figure {
                ids: &["rtc-p"],
                name: "Section 3.3",
                setup: "Packets between two preemption points (P), and the size of packets: how many \
                        channels are admitted, at what throughput.",
                saw: "P for the most channels at a reasonable throughput; the size likewise.",
                holds: "Both curves are measured on this machine, and the defaults follow from them.",
            },
        ],
    },
];
