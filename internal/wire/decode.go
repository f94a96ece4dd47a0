package wire

import (
	"bytes"
	"errors"
	"net/http"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
)

// message is a type that decode fills. Unmarshal decodes its protobuf encoding without
// the envelope.
type message interface {
	runtime.Object
	Unmarshal(protobuf []byte) error
}

var (
	errContentType = errors.New("not JSON, protobuf or CBOR")
	errCut         = errors.New("the message has no object")
)

// decode decodes a body of one of the content types that client-go negotiates.
func decode(media string, body []byte, into message) error {
	switch media {
	case runtime.ContentTypeJSON:
		return json.Unmarshal(body, into)
	case runtime.ContentTypeCBOR:
		// The serializer requires a kind. This one stands in for a missing kind.
		_, _, err := cbor.NewSerializer(creates{into}, nil, cbor.Transcode(false)).Decode(body, &schema.GroupVersionKind{Version: "v1", Kind: "Any"}, nil)
		return err
	case runtime.ContentTypeProtobuf:
		envelope, ok := bytes.CutPrefix(body, []byte("k8s\x00"))
		if !ok {
			return errContentType
		}
		// These are the field numbers of runtime.Unknown, whose Unmarshal copies the object.
		const raw, encoding = 2, 3
		found := false
		err := fields(envelope, func(number protowire.Number, _ uint64, data []byte) (err error) {
			switch {
			case number == raw:
				found, err = true, into.Unmarshal(data)
			case number == encoding && len(data) > 0:
				err = errContentType
			}
			return err
		})
		if err == nil && !found {
			err = errCut
		}
		return err
	}
	return errContentType
}

// creates makes a serializer decode an object of any kind into the message.
type creates struct{ message }

func (c creates) New(schema.GroupVersionKind) (runtime.Object, error) { return c.message, nil }

// mediaType returns the content type without its parameters.
func mediaType(header http.Header) string {
	media, _, _ := strings.Cut(header.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(media))
}

// object has the fields that show the effect of a write on an object. Decoding the whole
// object would cost more than the rest of the transport.
type object struct {
	Metadata struct {
		UID                        types.UID `json:"uid"`
		ResourceVersion            string    `json:"resourceVersion"`
		DeletionTimestamp          *string   `json:"deletionTimestamp"`
		DeletionGracePeriodSeconds *int64    `json:"deletionGracePeriodSeconds"`
		Finalizers                 []string  `json:"finalizers"`

		skippedMetadata
	} `json:"metadata"`

	// The CBOR decoder keeps the name of each unknown field. These save that garbage.
	APIVersion skipped `json:"-" cbor:"apiVersion"`
	Kind       skipped `json:"-" cbor:"kind"`
	Spec       skipped `json:"-" cbor:"spec"`
	Status     skipped `json:"-" cbor:"status"`
	Data       skipped `json:"-" cbor:"data"`
}

type skippedMetadata struct {
	Name              skipped `json:"-" cbor:"name"`
	GenerateName      skipped `json:"-" cbor:"generateName"`
	Namespace         skipped `json:"-" cbor:"namespace"`
	Generation        skipped `json:"-" cbor:"generation"`
	CreationTimestamp skipped `json:"-" cbor:"creationTimestamp"`
	Labels            skipped `json:"-" cbor:"labels"`
	Annotations       skipped `json:"-" cbor:"annotations"`
	OwnerReferences   skipped `json:"-" cbor:"ownerReferences"`
	ManagedFields     skipped `json:"-" cbor:"managedFields"`
}

// skipped is a value that is not decoded.
type skipped struct{}

// UnmarshalCBOR implements cbor.Unmarshaler.
func (*skipped) UnmarshalCBOR([]byte) error { return nil }

// GetObjectKind implements runtime.Object.
func (o *object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object.
func (o *object) DeepCopyObject() runtime.Object { c := *o; return &c }

// Unmarshal implements message.
func (o *object) Unmarshal(protobuf []byte) error {
	const metadata, uid, version, deletion, grace, finalizers = 1, 5, 6, 9, 10, 14
	return fields(protobuf, func(number protowire.Number, _ uint64, data []byte) error {
		if number != metadata {
			return nil
		}
		return fields(data, func(number protowire.Number, value uint64, data []byte) error {
			switch m := &o.Metadata; number {
			case uid:
				m.UID = types.UID(data)
			case version:
				m.ResourceVersion = string(data)
			case deletion:
				m.DeletionTimestamp = new(string)
			case grace:
				m.DeletionGracePeriodSeconds = new(int64(value))
			case finalizers:
				m.Finalizers = append(m.Finalizers, "")
			}
			return nil
		})
	})
}

// eviction has the delete options of a policy/v1 Eviction.
type eviction struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        skipped              `json:"-" cbor:"metadata"`
	DeleteOptions   metav1.DeleteOptions `json:"deleteOptions"`
}

// DeepCopyObject implements runtime.Object.
func (e *eviction) DeepCopyObject() runtime.Object { c := *e; return &c }

// Unmarshal implements message.
func (e *eviction) Unmarshal(protobuf []byte) error {
	const deleteOptions = 2
	return fields(protobuf, func(number protowire.Number, _ uint64, data []byte) error {
		if number == deleteOptions {
			return e.DeleteOptions.Unmarshal(data)
		}
		return nil
	})
}

// fields calls field for each field of a protobuf message, with the value of a varint or
// the data of a field with a length.
func fields(message []byte, field func(number protowire.Number, value uint64, data []byte) error) error {
	for len(message) > 0 {
		number, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return protowire.ParseError(size)
		}
		message = message[size:]
		var value uint64
		var data []byte
		switch kind {
		case protowire.VarintType:
			value, size = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			data, size = protowire.ConsumeBytes(message)
		default:
			size = protowire.ConsumeFieldValue(number, kind, message)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		message = message[size:]
		if err := field(number, value, data); err != nil {
			return err
		}
	}
	return nil
}
