package consistency

import (
	"errors"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// answer is what is read of the answer to a write.
type answer struct {
	rv         string    // metadata.resourceVersion
	uid        types.UID // metadata.uid
	deleting   bool      // metadata.deletionTimestamp is set
	finalizers bool      // metadata.finalizers is not empty
	grace      bool      // metadata.deletionGracePeriodSeconds is not zero
	deleted    types.UID // details.uid of a Status
}

// The readers below go through an answer once and step over what they do not want:
// decoding whole objects would cost more than the rest of the transport. They notice
// every answer that is cut off. Other mistakes may pass where they step over them;
// the caller's own decoder finds those.
var (
	errContentType = errors.New("not JSON, protobuf or CBOR")
	errCut         = errors.New("the answer is cut off")
	errSyntax      = errors.New("the answer cannot be read")
)

// errEnough ends the reading of an answer that is known to be whole.
var errEnough = errors.New("enough was read")

// read reads an answer of any content type that client-go asks for. Of one that is
// known to be whole it reads no further than the metadata of an object, or the details
// of a Status.
func read(contentType string, body []byte, whole bool) (answer, error) {
	media, _, _ := strings.Cut(contentType, ";")
	switch media = strings.TrimSpace(media); {
	case strings.EqualFold(media, runtime.ContentTypeJSON):
		return (&names{data: body}).read(whole)
	case strings.EqualFold(media, runtime.ContentTypeProtobuf):
		return readProtobuf(body)
	case strings.EqualFold(media, runtime.ContentTypeCBOR):
		return (&names{data: body, cbor: true}).read(whole)
	}
	return answer{}, errContentType
}

// names reads the encodings that give every field its name: JSON, and CBOR if that is
// set. What the two have in common is here. They are one type, rather than two with an
// interface, so that nothing of a reader needs memory of its own.
type names struct {
	data []byte
	at   int
	cbor bool
}

func (r *names) read(whole bool) (a answer, err error) {
	err = r.object(func(key []byte) error {
		switch string(key) {
		case "metadata":
			a = answer{deleted: a.deleted} // the last of several counts
			if r.kind() == 'n' {
				break
			}
			err := r.object(func(key []byte) error { return r.metadata(key, &a) })
			// That of a Status has no UID, and the details are still to come.
			if err == nil && whole && a.uid != "" {
				err = errEnough
			}
			return err
		case "details":
			a.deleted = ""
			if r.kind() != '{' {
				break
			}
			return r.object(func(key []byte) error {
				if string(key) != "uid" || r.kind() != '"' {
					return r.skip()
				}
				uid, err := r.text()
				a.deleted = types.UID(uid)
				return err
			})
		}
		return r.skip()
	})
	switch {
	case err == errEnough: //nolint:errorlint // it is never wrapped
		err = nil
	case err == nil && r.kind() != 0:
		err = errSyntax
	}
	return a, err
}

func (r *names) metadata(key []byte, a *answer) (err error) {
	switch string(key) {
	case "resourceVersion":
		a.rv, err = r.text()
	case "uid":
		var uid string
		uid, err = r.text()
		a.uid = types.UID(uid)
	case "deletionTimestamp":
		a.deleting, err = r.isSet()
	case "deletionGracePeriodSeconds":
		a.grace, err = r.isSet()
	case "finalizers":
		a.finalizers, err = r.isSet()
	default:
		err = r.skip()
	}
	return err
}

// kind tells what comes next by the byte that JSON begins it with: { [ " and n for null.
// It is 0 at the end.
func (r *names) kind() byte {
	if r.cbor {
		return r.kindCBOR()
	}
	return r.peek()
}

// object calls field for every key; field steps over the value.
func (r *names) object(field func(key []byte) error) error {
	if r.cbor {
		return r.objectCBOR(field)
	}
	return r.objectJSON(field)
}

// skip steps over a value.
func (r *names) skip() error {
	if r.cbor {
		return r.skipCBOR(0)
	}
	return r.skipJSON()
}

// text returns a string, "" for null.
func (r *names) text() (string, error) {
	switch {
	case r.kind() == 'n':
		return "", r.skip()
	case r.cbor:
		data, err := r.textCBOR()
		return string(data), err
	}
	data, err := r.textJSON()
	return string(data), err
}

// isSet steps over a value and reports whether it is one: not null, not 0, and not an
// empty list.
func (r *names) isSet() (bool, error) {
	r.kind() // steps over white space
	from := r.at
	if err := r.skip(); err != nil {
		return false, err
	}
	raw := r.data[from:r.at]
	if r.cbor {
		return !emptyCBOR(raw), nil
	}
	return !emptyJSON(raw), nil
}
