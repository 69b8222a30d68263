//! The paper CELL, figure by figure. No call fails.

use super::{Figure, Paper};

/// The paper.
pub(super) const CELL: Paper = Paper {
    name: "CELL",
    title: "Feasibility of a software-based ATM cell-level scheduler with advanced shaping",
    authors: "Schiller, Gunningberg, 1998",
    about: "A scheduler in software sends the cells of more than 64,000 connections, each shaped \
            cell by cell to a contract of its own, with priorities and proportional sharing under \
            overload.",
    terms: &[
        (
            "cell, slot",
            "A cell is a packet of 53 bytes, and a slot its time on the link, in us: 2.83 us in \
             the simulation (149.76 Mbit/s), 0.68 us in figure 5 (622 Mbit/s). On packets a cell \
             is a packet of 1500 bytes and a slot is 120 us (100 Mbit/s).",
        ),
        (
            "connection, VC",
            "A stream of cells with a contract. The paper calls it a VC (virtual connection).",
        ),
        (
            "CBR, VBR",
            "A connection with a constant rate, its peak rate; one with a variable rate, which \
             also has a sustained rate and a burst.",
        ),
        (
            "peak rate, sustained rate",
            "The greatest rate, and the greatest rate in the long run, in bit/s (PCR and SCR). \
             The burst (MBS, in bytes or cells) is what may be sent at the peak rate at once.",
        ),
        (
            "single, dual bucket",
            "What happens after a burst. With a single bucket a connection continues at its \
             sustained rate. With a dual bucket it is silent until it may send a whole burst \
             again.",
        ),
        (
            "CDVT",
            "The cell delay variation tolerance, in ms: by how much a cell that was delayed may \
             be followed by the next one sooner than the rate allows.",
        ),
        (
            "policer",
            "A check at the receiver (GCRA in the paper) that finds each cell which came earlier \
             than its contract allows.",
        ),
        (
            "PDU",
            "A message of a program that is sent as many cells: here 103 or 105.",
        ),
    ],
    figures: &[
        Figure {
            ids: &["cell-fig3", "cell-fig3-sim"],
            name: "Figure 3",
            setup: "Ten connections send on one link and start in slots 0 to 80. Connections 2, \
                    3, 4, 7, 8 and 9 are CBR, with one cell in each 8, 10, 14, 20, 25 and 11 \
                    slots. Connection 5 is VBR with a single bucket, and 0, 1 and 6 are VBR with \
                    dual buckets (bursts of 20, 16 and 12 cells). They use 69 % of the link in \
                    the long run, and often two want the same slot. A run has 250,000 slots (30 \
                    s) of 120 us on packets, with a CDVT of 40 slots, 4.8 ms; the simulation has \
                    1,000,000 slots of 2.83 us, with a CDVT of 40 slots, 113 us.",
            drawn: "Cells sent (y) against the number of the slot (x), one line for each of ten \
                    connections. The picture is not in our text of the paper, so the ranges of \
                    its axes are not known.",
            saw: "Straight lines, with slight deviations when two or more connections are \
                  scheduled for the same slot. The paper gives no numbers.",
            holds: "A policer finds no cell early. A connection loses at most one cell to \
                    conflicts, compared with what its contract allows from its first cell to its \
                    last, and each packet that was sent arrives. At least 99 % of the bursts of a \
                    dual bucket have exactly the length of the contract, and in the simulation \
                    none is more than one cell off.",
            differs: "The paper does not give the contracts: these are ours. On packets a cell is \
                      a packet of 1500 bytes, so the lines are those of a slower link. There a \
                      connection that a stop of the driver delayed by more than half of its \
                      tolerance loses what it would have sent in that time, since a delay gives \
                      no credit: the table shows these packets as missing and excused, beside the \
                      least number by the contract. The policer is `netnice check`, which reads a \
                      capture of the packets that arrived.",
        },
        Figure {
            ids: &["cell-fig4", "cell-fig4-sim"],
            name: "Figure 4",
            setup: "Six connections in three classes of priority share one link for 600 slots of \
                    the paper: 100 Mbit/s on packets, and 149.76 Mbit/s in the simulation. Their \
                    CDVT is 5 ms on packets, and 0.5 ms in the simulation. VC 3 has priority 0 \
                    and wants 20 % of the link. VC 1 wants 25 % in priority 1, and VC 4, 5 and 6 \
                    in the same class want 100 % each, from slots 200, 250 and 300 until slot \
                    400. VC 2 has priority 2 and wants 10 %. A second run gives the lowest class \
                    a minimum of 5 % of the link.",
            drawn: "Cells sent (y) against the number of the slot (x), one line for each of six \
                    connections; the overload is between slots 200 and 400. The picture is not in \
                    our text of the paper, so the ranges of its axes are not known.",
            saw: "VC 3 is not disturbed. Connections with equal parameters have equal slopes, \
                  which flatten with each start. VC 2 starves in the overload, which a minimum \
                  could avoid.",
            holds: "The rates of VC 5 and 6 are within 2 % of VC 4, and within 2 % of four times \
                    that of VC 1, as they asked. VC 3 keeps its slope within 1 %, and VC 2 has at \
                    most 5 % of what it had before. After the overload VC 1 and VC 2 have their \
                    slopes within 1 %. With a minimum VC 2 has at least 4.95 % of the link in the \
                    overload.",
            differs: "The paper does not give what VC 1, 2 and 3 want: 25, 10 and 20 % are our \
                      choice. Each of its slots is 100 slots here, so that 2 % can be measured. \
                      In the simulation the classes divide the whole link. On packets they divide \
                      a slice of 9 ms in each 10 ms, 90 % of the link: at least 2 % of a link \
                      stay with the kernel's classes, and that the slice is 90 % and not more is \
                      our choice. A slice takes nothing of the other tenth, so VC 2 starves while \
                      that tenth is idle. On packets the first five slots after a start or an end \
                      are not judged, since a process takes some time for these, nor are those \
                      until slot 440 for the slopes afterwards (in the simulation until 410). \
                      What recorded stops of the driver that are longer than 2.4 ms took from VC \
                      1, 2 and 3 counts as sent.",
        },
        Figure {
            ids: &["cell-fig5"],
            name: "Figure 5",
            setup: "65,536 connections with one contract start in one instant, and each sends \
                    25,000 bytes in 5 PDUs of 105 cells. Together they book 616 Mbit/s of a link \
                    of 622 Mbit/s (99 %), and in a second run 150 % of the link. The scheduler \
                    runs in virtual time, and what is counted for a cell is all work of the \
                    paper's adapter: select a connection, shape it and queue it again, count the \
                    cell in its buffer, and issue a transfer command for the next PDU, which is \
                    wanted when half of the present one is sent. No data is moved, and no cell \
                    goes to a driver or a link.",
            drawn: "Cycles for each cell over the course of the run, averaged in bins, on a \
                    Pentium Pro with Linux. The text speaks of a jump at the beginning, which \
                    comes from the cache. The picture is not in our text of the paper, so the \
                    ranges of its axes are not known.",
            saw: "Most cells take up to 600 cycles, which are 3 us at 200 MHz; at some points the \
                  count goes up to about 650. Overload adds delay and no cycles, and drops no \
                  cell. The important result is that the number of cycles has an upper bound.",
            holds: "The median of all rounds is at most 600 cycles per cell, and the worst \
                    quarter of a round at most 650. The worst round takes at most 1.2 times the \
                    median, both at 99 % and at 150 %, and the median at 150 % is at most 1.1 \
                    times that at 99 %. All 34,406,400 cells are sent.",
            differs: "A round is one cell of each connection, 65,536 cells; the paper averages in \
                      bins of a size that is lost. The bounds of 1.2 and 1.1 are ours, and harder \
                      than the paper's cycles for a processor of today. The work is the same in \
                      each of 7 runs, and of each quarter of a round the least is taken, which is \
                      easier: other work of the machine does not count. The greatest value of a \
                      single run is in the table. The paper's text has 9,600 bit/s for a \
                      connection; 616 Mbit/s for 65,536 connections are 9,399 bit/s. A slot of \
                      622 Mbit/s is 680 ns, which the paper's processor did not reach with so \
                      many connections.",
        },
        Figure {
            ids: &["cell-fig6"],
            name: "Figure 6",
            setup: "1, 100, 1,000, 65,536 and 1,048,576 connections send PDUs of 105 cells \
                    without an end, in virtual time, and use 90 % of a link. They have dual \
                    buckets, either all the same (peak rate four times the sustained one, bursts \
                    of 10 cells) or random (2 to 9 times, bursts of 2 to 31 cells). Counted is \
                    the same work of a cell as in a network adapter: select, shape, queue again, \
                    count in the buffer, issue a transfer command; and beside it shaping alone, \
                    with its queue. Costs are means of 16,384 cells, and 64 such bins are taken.",
            drawn: "Cycles for each cell over the course of the run, averaged in bins, for 1,000 \
                    connections on a Pentium Pro. The picture is not in our text of the paper, so \
                    the ranges of its axes are not known.",
            saw: "160 cycles for a cell with 1 connection, typically less than 300 with 100, and \
                  less than 350 (1.75 us at 200 MHz) with 1,000. Shaping alone takes less than 85 \
                  cycles on average, whatever the number of connections.",
            holds: "The median is at most the paper's: 160 cycles per cell with 1 connection, 300 \
                    with 100, 350 with 1,000, and 600 with 65,536. Shaping alone takes at most 85 \
                    cycles with contracts that are the same. With 1,048,576 connections the \
                    cycles are shown and not judged.",
            differs: "The paper has no values for more than 65,536 connections, nor for random \
                      contracts, which are harder for a processor to predict; they have the same \
                      bounds here. Of each bin the least of 5 runs is taken, so other work of the \
                      machine does not count. Cycles are compared, and not times, since our \
                      processor is a much later one.",
        },
        Figure {
            ids: &["cell-dma"],
            name: "Section 4.4",
            setup: "A network adapter is simulated that fetches cells from the memory of the host \
                    just in time. 100 connections of 0.3 to 2.1 Mbit/s use 80 % of a link of \
                    149.76 Mbit/s (a slot is 2.83 us), and each sends 100 PDUs of 103 cells. A \
                    transfer on the bus of 1 Gbit/s begins after a random time from 0.1 to 2 us, \
                    evenly distributed, and then takes 0.42 us for each cell. It fetches 1 cell, \
                    8 cells or a whole PDU, and a connection has at most a window of 8, 24 or 206 \
                    cells on the adapter or on the way.",
            drawn: "",
            saw: "The paper claims this and does not measure it: fetching ahead avoids delays, \
                  since shaping makes the time of the next cell known; buffers can be smaller; \
                  and the host is notified when all PDUs are sent.",
            holds: "All cells are sent, and none is early. No cell is missing in its slot (an \
                    underrun) although the delay of the bus varies, no connection has more cells \
                    on the adapter than its window, and the host is told of the end of each \
                    connection. As a control, a bus of 100 Mbit/s, which is slower than the \
                    connections together, must cause underruns.",
            differs: "The paper gives neither delays of the bus, nor windows, nor connections: \
                      these are ours.",
        },
    ],
};
