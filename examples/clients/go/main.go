// Reads rows of a server of Embedrock in three ways: a pull, a plain MGET, and many pulls at once.
//
//	go run . -address 127.0.0.1:6380 -table items 17 42 99
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"reflect"
	"strconv"

	"github.com/redis/go-redis/v9"
)

func main() {
	log.SetFlags(0)
	address := flag.String("address", "127.0.0.1:6380", "where the server listens")
	table := flag.String("table", "items", "name of the table")
	pulls := flag.Int("pulls", 100, "how many pulls to send before the first reply is read")
	flag.Parse()
	keys := make([]uint64, flag.NArg())
	names := make([]string, flag.NArg())
	for i, text := range flag.Args() {
		key, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			log.Fatalf("%s is no key: %v", text, err)
		}
		keys[i], names[i] = key, *table+":"+text
	}
	if len(keys) == 0 {
		log.Fatal("no keys; name some: 17 42 99")
	}

	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: *address})
	defer client.Close()

	rows, err := Decode(Pull(ctx, client, *table, keys))
	if err != nil {
		log.Fatal(err)
	}
	for i, values := range rows.Values {
		fmt.Println(names[i], !rows.Missing[i], values[:min(4, len(values))], "...")
	}

	// MGET replies null for what was never written, in place of the initial row.
	found, err := client.MGet(ctx, names...).Result()
	if err != nil {
		log.Fatal(err)
	}
	for i, value := range found {
		text, written := value.(string)
		same := written && reflect.DeepEqual(Floats([]byte(text)), rows.Values[i])
		if written == rows.Missing[i] || written != same {
			log.Fatalf("MGET %s differs from the pull", names[i])
		}
	}
	fmt.Println("MGET has the same rows")

	// All requests go out together; replies come in their order.
	pipeline := client.Pipeline()
	replies := make([]*redis.Cmd, *pulls)
	for i := range replies {
		replies[i] = Pull(ctx, pipeline, *table, keys)
	}
	if _, err := pipeline.Exec(ctx); err != nil {
		log.Fatal(err)
	}
	for _, reply := range replies {
		again, err := Decode(reply)
		if err != nil {
			log.Fatal(err)
		}
		if !reflect.DeepEqual(again, rows) {
			log.Fatal("a pull of the pipeline differs")
		}
	}
	fmt.Println(len(replies), "pulls in one round trip have the same rows")
}
