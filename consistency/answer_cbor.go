package consistency

// What precedes an item of CBOR (RFC 8949).
const (
	cborBytes, cborText, cborArray, cborMap, cborTag, cborSimple = 2, 3, 4, 5, 6, 7

	cborSelfDescribed = 55799
	cborNull          = cborSimple<<5 | 22
	cborBreak         = 0xff
	cborMaxDepth      = 10000 // what Kubernetes accepts
)

func (r *names) kindCBOR() byte {
	if r.at >= len(r.data) {
		return 0
	}
	switch first := r.data[r.at]; {
	case first == cborNull:
		return 'n'
	case first>>5 == cborBytes, first>>5 == cborText:
		return '"'
	case first>>5 == cborMap:
		return '{'
	}
	return 1 // not the end, nor anything that is asked for
}

// head reads what precedes every item: its type, and its value or length. Of an item
// of indefinite length open is true.
func (r *names) head() (major byte, value uint64, open bool, err error) {
	if r.at >= len(r.data) {
		return 0, 0, false, errCut
	}
	major, value = r.data[r.at]>>5, uint64(r.data[r.at]&31)
	r.at++
	switch {
	case value < 24:
	case value < 28:
		var data []byte
		data, err = r.chunk(1 << (value - 24))
		value = 0
		for _, b := range data {
			value = value<<8 | uint64(b)
		}
	case value == 31 && major >= cborBytes && major != cborTag:
		value, open = 0, true
	default:
		err = errSyntax
	}
	return major, value, open, err
}

// chunk takes as many bytes.
func (r *names) chunk(length uint64) ([]byte, error) {
	if length > uint64(len(r.data)-r.at) {
		return nil, errCut
	}
	r.at += int(length)
	return r.data[r.at-int(length) : r.at], nil
}

// ends reports whether an item of indefinite length ends, and steps over its end.
func (r *names) ends() bool {
	if r.at < len(r.data) && r.data[r.at] == cborBreak {
		r.at++
		return true
	}
	return false
}

// textCBOR returns a string. Kubernetes writes byte strings; text strings are as good.
// One in chunks, which it never writes, is an error.
func (r *names) textCBOR() ([]byte, error) {
	major, length, open, err := r.head()
	if err != nil {
		return nil, err
	}
	if open || major != cborBytes && major != cborText {
		return nil, errSyntax
	}
	return r.chunk(length)
}

func emptyCBOR(raw []byte) bool {
	switch raw[0] {
	case cborNull, 0, cborArray << 5:
		return true
	}
	return raw[0] == cborArray<<5|31 && raw[1] == cborBreak
}

func (r *names) objectCBOR(field func(key []byte) error) error {
	major, length, open, err := r.head()
	for err == nil && major == cborTag && length == cborSelfDescribed {
		major, length, open, err = r.head()
	}
	if err != nil {
		return err
	}
	if major != cborMap {
		return errSyntax
	}
	for n := uint64(0); open && !r.ends() || !open && n < length; n++ {
		key, err := r.textCBOR()
		if err != nil {
			return err
		}
		if err := field(key); err != nil {
			return err
		}
	}
	return nil
}

// skipCBOR steps over an item. Depth counts only what has an indefinite length, since
// the rest needs no stack: it is a number of items that are still to come.
func (r *names) skipCBOR(depth int) error {
	data, at := r.data, r.at
	for items := uint64(1); items > 0; items-- {
		if at >= len(data) {
			return errCut
		}
		// Nearly all has a value or a length that stands in the first byte.
		if first := data[at]; first&31 < 24 {
			at++
			switch value := first & 31; first >> 5 {
			case cborBytes, cborText:
				at += int(value)
			case cborArray:
				items += uint64(value)
			case cborMap:
				items += 2 * uint64(value)
			case cborTag:
				items++
			}
			continue
		}
		r.at = at
		major, value, open, err := r.head()
		switch {
		case err != nil:
			return err
		case open && (major == cborSimple || depth > cborMaxDepth):
			return errSyntax // a break that nothing began
		case open:
			for !r.ends() {
				if err := r.skipCBOR(depth + 1); err != nil {
					return err
				}
			}
		case major >= cborBytes && major <= cborMap && value > uint64(len(data)-r.at):
			return errCut // an item has a byte at least
		case major == cborBytes || major == cborText:
			r.at += int(value)
		case major == cborArray || major == cborMap:
			items += value << (major - cborArray)
		case major == cborTag:
			items++
		}
		at = r.at
	}
	r.at = at
	if at > len(data) {
		return errCut
	}
	return nil
}
