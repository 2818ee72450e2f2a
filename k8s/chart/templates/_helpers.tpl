{{- define "fleet.image" -}}
{{- required "image.name is missing: name the image with Fleet, repository:tag or repository@sha256:digest" .Values.image.name -}}
{{- end }}

{{- define "fleet.labels" -}}
app.kubernetes.io/name: {{ .name }}
{{ if .part }}app.kubernetes.io/component: {{ .part }}
{{ end -}}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/part-of: fleet
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "fleet.namespaces" -}}
{{- range (.Values.watchNamespaces | default (list .Release.Namespace)) }}
- {{ . }}
{{- end }}
{{- end }}

{{- define "fleet.podSecurity" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "fleet.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* A container's image, login, home and the clusters' files. */}}
{{- define "fleet.container" -}}
image: {{ include "fleet.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  - {name: HOME, value: /var/lib/fleet}
  - {name: FLEET_HOME, value: /var/lib/fleet}
  - {name: FLEET_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
{{- with .Values.kafka.envFrom }}
envFrom:
{{- range . }}
  - secretRef: {name: {{ . | quote }}}
{{- end }}
{{- end }}
securityContext:
  {{- include "fleet.containerSecurity" . | nindent 2 }}
volumeMounts:
  - {name: clusters, mountPath: /etc/fleet/clusters, readOnly: true}
  - {name: home, mountPath: /var/lib/fleet}
  - {name: tmp, mountPath: /tmp}
{{- range $name, $path := .Values.kafka.mounts }}
  - {name: {{ printf "secret-%s" $name | quote }}, mountPath: {{ $path | quote }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "fleet.volumes" -}}
- {name: clusters, configMap: {name: {{ .Release.Name }}-clusters}}
- {name: home, emptyDir: {}}
- {name: tmp, emptyDir: {}}
{{- range $name, $path := .Values.kafka.mounts }}
- {name: {{ printf "secret-%s" $name | quote }}, secret: {secretName: {{ $name | quote }}}}
{{- end }}
{{- end }}

{{- define "fleet.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What a pod may reach, if the platform says so. */}}
{{- define "fleet.egress" -}}
{{- with .Values.networkPolicy.egress -}}
policyTypes: [Ingress, Egress]
egress:
  {{- toYaml . | nindent 2 }}
{{- else -}}
policyTypes: [Ingress]
{{- end }}
{{- end }}
