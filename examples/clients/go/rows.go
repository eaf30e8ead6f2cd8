package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/redis/go-redis/v9"
)

// Rows is what a pull replies: one row for each key, in the order of the keys.
type Rows struct {
	Values  [][]float32
	Missing map[int]bool // places of keys that were never written, whose row is the initial one
}

const (
	layout      = 1  // version 1 in the low half, rows of float32 (0) in the high half
	headerBytes = 12 // layout, how many rows, how many of them are missing
)

// Doer is a client, or a pipeline whose replies come when it is executed.
type Doer interface {
	Do(ctx context.Context, args ...any) *redis.Cmd
}

// Pull asks for the rows of keys, which are packed: 8 bytes each, the least significant first.
func Pull(ctx context.Context, to Doer, table string, keys []uint64) *redis.Cmd {
	packed := make([]byte, 0, 8*len(keys))
	for _, key := range keys {
		packed = binary.LittleEndian.AppendUint64(packed, key)
	}
	return to.Do(ctx, "EMB.PULLB", table, packed)
}

// Decode gives the rows of a pull that was replied.
func Decode(reply *redis.Cmd) (*Rows, error) {
	text, err := reply.Text()
	if err != nil {
		return nil, err
	}
	bytes := []byte(text)
	if len(bytes) < headerBytes {
		return nil, fmt.Errorf("a reply of %d bytes, expected a header of %d", len(bytes), headerBytes)
	}
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(bytes[4*i:]) }
	if word(0) != layout {
		return nil, fmt.Errorf("a reply of layout %d, expected %d: float32, version 1", word(0), layout)
	}
	count, missing := int(word(1)), int(word(2))
	begin := headerBytes + 4*missing
	if missing > count || begin > len(bytes) || (count > 0 && (len(bytes)-begin)%(4*count) != 0) {
		return nil, fmt.Errorf("%d rows, %d missing in %d bytes", count, missing, len(bytes))
	}
	rows := &Rows{Missing: make(map[int]bool, missing)}
	for i := 0; i < missing; i++ {
		rows.Missing[int(word(3+i))] = true
	}
	for i := 0; i < count; i++ {
		size := (len(bytes) - begin) / count
		rows.Values = append(rows.Values, Floats(bytes[begin+i*size:begin+(i+1)*size]))
	}
	return rows, nil
}

// Floats gives the values of a row: float32, the least significant byte first.
func Floats(bytes []byte) []float32 {
	values := make([]float32, len(bytes)/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(bytes[4*i:]))
	}
	return values
}
