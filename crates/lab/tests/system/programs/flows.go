// Flows is the Go program of the system tests: statically linked, it makes raw system calls, opens its
// sockets from any of its threads, and listens with MPTCP where the kernel offers it.
//
//	flows send ADDRESS FLOWS      connects and sends
//	flows serve ADDRESS           listens and sends to each client that connects
package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
)

func send(connection net.Conn) {
	block := make([]byte, 64<<10)
	for {
		if _, err := connection.Write(block); err != nil {
			return
		}
	}
}

func main() {
	switch os.Args[1] {
	case "send":
		flows, err := strconv.Atoi(os.Args[3])
		if err != nil {
			panic(err)
		}
		for i := 0; i < flows; i++ {
			go func() {
				connection, err := net.Dial("tcp", os.Args[2])
				if err != nil {
					panic(err)
				}
				send(connection)
			}()
		}
		fmt.Println(`{"ready": true}`)
	case "serve":
		listener, err := net.Listen("tcp", os.Args[2])
		if err != nil {
			panic(err)
		}
		fmt.Println(`{"ready": true}`)
		for {
			connection, err := listener.Accept()
			if err != nil {
				panic(err)
			}
			go send(connection)
		}
	}
	select {}
}
